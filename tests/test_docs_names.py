"""What documents name in backticks is there: modules, classes, functions and their parameters, files, commands.

Only what looks like a name of ours is looked up: a path, a dotted name, CamelCase, snake_case, a command. Words in capitals
and single lower-case words are SQL, or of an example.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from anabranch.cli import _parser

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

MADE = (".venv", "bench/out")
"""Folders that are there only after something ran."""

OTHERS = {"foreachBatch", "mapInArrow", "repartitionById", "DataFrame", "DataFrame.mapInArrow", "DataStreamWriter.trigger"}
"""Names of Spark."""

VALUES = {"run": "Run", "session": "Session", "s": "Session"}
"""What examples call the values that people have in hand."""


@dataclass
class Members:
    """What a class has, as written: methods, fields, what is assigned to `self`."""

    names: set[str] = field(default_factory=set)
    bases: list[str] = field(default_factory=list)


@dataclass
class Source:
    """The names of all modules."""

    modules: dict[str, set[str]] = field(default_factory=dict)
    """By dotted name, what a module has at its top level."""
    classes: dict[str, Members] = field(default_factory=dict)
    words: set[str] = field(default_factory=set)
    """Everything that is called something: functions, parameters, fields, keys of dictionaries, modules."""

    def add(self, path: Path) -> None:
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        names = self.modules.setdefault(name, set())
        self.words |= set(name.split("."))
        for node in tree.body:
            names |= set(_defined(node))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self._add_class(node)
            if isinstance(node, ast.Dict):
                self.words |= {k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.words.add(node.name)
            elif isinstance(node, ast.arg):
                self.words.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.words.add(node.target.id)

    def _add_class(self, node: ast.ClassDef) -> None:
        members = self.classes.setdefault(node.name, Members())
        members.bases += [base.id for base in node.bases if isinstance(base, ast.Name)]
        for part in node.body:
            members.names |= set(_defined(part))
        for part in ast.walk(node):
            is_stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
            if is_stored and isinstance(part.value, ast.Name) and part.value.id == "self":
                members.names.add(part.attr)

    def has(self, dotted: str) -> bool:
        """Whether a dotted name leads somewhere; `ab` is what examples call the package."""
        first, *rest = dotted.removeprefix("ab.").split(".")
        first = VALUES.get(first, first) if rest else first
        if first in self.classes:
            return not rest or (len(rest) == 1 and self._has_member(first, rest[0]))
        for module in [m for m in self.modules if f".{m}.".startswith(f".{first}.") or f".{first}." in f".{m}."]:
            for cut in range(len(rest) + 1):
                if f".{module}".endswith("." + ".".join([first, *rest[:cut]])) and self._leads(module, rest[cut:]):
                    return True
        return not rest and first in self.words

    def _leads(self, module: str, names: list[str]) -> bool:
        if not names:
            return True
        if names[0] not in self.modules[module]:
            return False
        return len(names) == 1 or (len(names) == 2 and names[0] in self.classes and self._has_member(names[0], names[1]))

    def _has_member(self, name: str, member: str) -> bool:
        members = self.classes.get(name)
        return members is not None and (member in members.names or any(self._has_member(b, member) for b in members.bases))


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


@cache
def source() -> Source:
    """Read when the first test asks for it: collecting tests is quick."""
    found = Source()
    for folder in ("anabranch", "bench", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.add(path)
    return found


@cache
def packages() -> set[str]:
    """What a dotted name of ours may begin with."""
    return {m.split(".")[1] for m in source().modules if m.startswith("anabranch.")} | {"anabranch", "ab", "bench", "tests"}


TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COMMANDS = {name for path in (ROOT / "anabranch" / "cli").glob("*.py")
            for name in re.findall(r'add_parser\("(\w+)"', path.read_text())}  # fmt: skip


def problem(text: str) -> str | None:
    """What is wrong with something in backticks; None if it is right, or nothing of ours."""
    if found := re.fullmatch(r"python -m ([\w.]+)( .*)?", text):
        return None if found[1] in source().modules else f"there is no module {found[1]}"
    if found := re.fullmatch(r"make ((?:[A-Z]+=\S+ )*)([a-z-]+)( [A-Z]+=\S+)*", text):
        return None if found[2] in TARGETS else f"there is no target {found[2]}"
    if found := re.fullmatch(r"anabranch (\w+)( .*)?", text):
        return None if found[1] in COMMANDS else f"there is no command {found[1]}"
    if found := re.fullmatch(r"(\.?[\w-]+(?:/[\w.<>-]+)*(?:/|\.py|\.md|\.toml|\.lock))(?:: (\w+))?", text):
        return problem_of_path(found[1], found[2])
    if re.fullmatch(r"(anabranch|bench|tests|docs)(/[\w.]+)+", text):
        return problem_of_path(text, None)
    if not re.fullmatch(r"[\w.]+(\(.*\))?", text) or text.endswith(".sql"):
        return None
    for name in re.findall(r"(?<![\"'\w.])[A-Za-z_]\w*(?:\.\w+)*(?![\w\"'.])(?!=)", re.sub(r"\"[^\"]*\"|'[^']*'", "", text)):
        if name not in OTHERS and looks_like_ours(name) and not source().has(name):
            return f"there is no {name}"
    return None


def looks_like_ours(name: str) -> bool:
    first, *rest = name.split(".")
    if rest:
        known = first in packages() or first in VALUES or first in source().words or is_camel(first)
        return len(first) > 1 and known and not name.startswith("spark.sql.")  # a setting of Spark
    return is_camel(name) or ("_" in name.strip("_") and name.islower())


def is_camel(name: str) -> bool:
    return re.fullmatch(r"_?([A-Z][a-z0-9]+)+", name) is not None and name not in ("True", "False", "None")


def problem_of_path(path: str, name: str | None) -> str | None:
    places = (ROOT, ROOT / "anabranch", ROOT / "anabranch" / "engine")
    if path.startswith(MADE) or (path.endswith("/") and not any((p / path.split("/")[0]).exists() for p in places)):
        return None  # a folder of a checkpoint, say
    for place in places:
        if (place / path).exists():
            module = ".".join((place / path).relative_to(ROOT).with_suffix("").parts)
            return None if name is None or name in source().modules[module] else f"there is no {name} in {path}"
    return f"there is no {path}"


def test_documents_name_what_is_there() -> None:
    """One test for all documents: each worker that ran one of several would parse the whole source."""
    assert not {document.name: wrong for document in DOCUMENTS if (wrong := problems_of(document))}


def problems_of(document: Path) -> dict[str, str]:
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = {" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)}
    return {name: wrong for name in sorted(named) if (wrong := problem(name)) is not None}


def test_what_is_not_there_is_noticed() -> None:
    """The names that documents had when nobody looked, and others of each kind."""
    gone = (
        "Box._nothing", "engine.box.nothing", "engine.nothing.f", "Nothing", "Box.step.inner", "run.nothing", "no_such_word",
        "engine/nothing.py", "adapt/loop.py: nothing", "anabranch/nothing", "python -m bench.nothing", "make nothing",
        "anabranch nothing", "kernels.runs.nothing", "foreachBatch(Host.nothing)", "Nothing(approve=True)",
        "ab.Nothing", "ab.sinks.nothing", "engine/nothing/",
    )  # fmt: skip
    assert [name for name in gone if problem(name) is None] == []
    there = (
        "drive.local.LocalRun.step", "LocalRun", "kernels.runs.sort_by_hash", "run.migrate(query, plan)", "near.sql",
        "sql.parse_script", "adapt/loop.py: step", "Cost.within", "make test", "make test-long PART=3/12", "o.id",
        "p.amount", "RESULT_TIME", "Adapt(approve=True)", "ab.sinks.parquet", "ab.Budget", "state/<slot>/",
    )  # fmt: skip
    assert {name: problem(name) for name in there if problem(name) is not None} == {}


def test_every_option_is_documented() -> None:
    """Each command has a section in docs/command-line.md, with each of its options in it."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    (commands,) = [a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction)]
    for name, parser in commands.choices.items():
        _, found, rest = page.partition(f"\n## anabranch {name}\n")
        assert found, name
        section = rest.partition("\n## ")[0]
        options = {o for a in parser._actions for o in a.option_strings if o.startswith("--")} - {"--help"}
        assert {o for o in options if f"`{o}" not in section} == set(), name


def glossary() -> dict[str, str]:
    """What the glossary says of each word."""
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    return {word: meaning for word, meaning in rows if word != "word"}


def test_the_glossary_is_in_alphabetical_order_and_has_each_word_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \| .+ \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert len(rows) > 100
    assert rows == sorted(set(rows), key=str.lower)


def test_the_glossary_names_every_action() -> None:
    tree = ast.parse((ROOT / "anabranch" / "plan" / "actions.py").read_text())
    kinds = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert "PlaceBlock" in kinds
    assert [kind for kind in kinds if f"`{kind}`" not in glossary()["action"]] == []
