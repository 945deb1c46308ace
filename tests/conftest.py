"""What all tests share: which random cases are drawn (`tests/support/cases.py`), and the Spark that a worker has."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import is_hypothesis_test, settings

# Before anything of it is imported: its asserts say what they compared, as those of tests do.
pytest.register_assert_rewrite("tests.support")

from bench.postgres import SERVICES, Server, why_not  # noqa: E402
from tests.support.cases import QUICK_EXAMPLES, QUICK_PARTS, QUICK_SEEDS, Part, draw, examples_of, seed_of  # noqa: E402
from tests.support.class_archive import use_archive  # noqa: E402
from tests.support.s3 import Bucket, new_bucket, s3_server  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile("steady", derandomize=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("anabranch", "random cases")
    group.addoption("--quick", action="store_true", help="few random cases of every test")
    group.addoption("--part", default="1/1", metavar="k/n", help="the k-th of n parts of the long cases")
    group.addoption("--seed", type=int, help="long and fresh cases are drawn from it (default: from the clock)")


def pytest_configure(config: pytest.Config) -> None:
    use_archive()
    if not takes_long_ones(config):
        settings.load_profile("steady")
    config.option.repeats = getattr(config.option, "repeats", config.option.seed is not None)
    if config.option.seed is None:  # workers get the options of the process that starts them, so all have the same
        config.option.seed = time.time_ns() // 1_000_000 % 10**9
    try:
        Part.parse(config.option.part)
    except ValueError as error:
        raise pytest.UsageError(f"--part: {error}") from None


def takes_long_ones(config: pytest.Config) -> bool:
    return "long" in (config.option.markexpr or "").replace("not long", "")


def pytest_report_header(config: pytest.Config) -> str:
    what = f"part {config.option.part} of the long cases" if takes_long_ones(config) else "fresh cases"
    return f"{what} from --seed {config.option.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
    if config.option.quick:
        _take_few(config, items)
    if takes_long_ones(config):
        _take_part(config, items)
    # The slowest first, so that no worker is left with one of them at the end.
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The objects of modules and tests live as long as the run: the collector need not go through them again and again."""
    gc.collect()
    gc.freeze()


def _take_few(config: pytest.Config, items: list[pytest.Item]) -> None:
    taken: Counter[str] = Counter()
    kept, left_out = [], []
    for item in _without_dear_cases(items, left_out):
        test = _hypothesis_test(item)
        if test is not None:
            draw(test, min(QUICK_EXAMPLES, examples_of(test)))
        name = item.nodeid.partition("[")[0]
        is_seeded = "seed" in getattr(getattr(item, "callspec", None), "params", {})
        taken[name] += is_seeded
        (left_out if is_seeded and taken[name] > QUICK_SEEDS else kept).append(item)
    _keep(config, items, kept, left_out)


def _without_dear_cases(items: list[pytest.Item], left_out: list[pytest.Item]) -> list[pytest.Item]:
    """Of a parametrized test that is marked `few(n)` only n cases, spread over all of them."""
    of_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None:
            of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in of_test.values():
        mark = cases[0].get_closest_marker("few")
        assert mark is not None
        taken = {len(cases) * place // mark.args[0] for place in range(mark.args[0])}
        left_out += [case for place, case in enumerate(cases) if place not in taken]
    dropped = set(left_out)
    return [item for item in items if item not in dropped]


def _take_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The part of the long cases that is asked for: of drawn cases fewer, from a seed of its own; of single tests some."""
    part, seed = Part.parse(config.option.part), config.option.seed
    long = [item for item in items if item.get_closest_marker("long") is not None]
    drawing, single = [], []
    wanted: dict[Any, int] = {}
    for item in long:
        test = _hypothesis_test(item)
        if test is not None:
            if test not in wanted:  # the cases of a parametrized test are drawn by one function
                wanted[test] = part.share(examples_of(test))
                draw(test, max(1, wanted[test]), seed_of(seed, item.nodeid, part.number, part.count))
            if wanted[test]:
                drawing.append(item)
        elif "part" in getattr(item, "fixturenames", ()):
            drawing.append(item)
        else:
            single.append(item)
    kept = {*drawing, *part.of(single)}
    _keep(config, items, [i for i in items if i in kept or i not in long], [i for i in long if i not in kept])


def _hypothesis_test(item: pytest.Item) -> Any:
    test = getattr(item, "obj", None)
    return test if test is not None and is_hypothesis_test(test) else None


def _keep(config: pytest.Config, items: list[pytest.Item], kept: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture
def part(request: pytest.FixtureRequest) -> Part:
    """The part of its cases that a test is to run, of those that it goes through by itself."""
    if request.config.option.quick:
        return Part(1, QUICK_PARTS)
    if not takes_long_ones(request.config):
        return Part()
    return Part.parse(request.config.option.part)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark of this worker; tests that ask for it are marked `spark`."""
    from anabranch.spark.create import create_session

    os.environ.setdefault("PGSERVICEFILE", str(SERVICES))  # before there is a JVM: workers have its environment
    session = create_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def bucket(s3_port: int) -> Bucket:
    return new_bucket(s3_port)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL of this worker."""
    if reason := why_not():
        pytest.skip(reason)
    server = Server()
    yield server
    server.delete()
