"""Small wrongs are still where `tests/mutations.py` says: one that is stale is none."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from tests import mutations
from tests.mutations import MUTATIONS, ROOT, run_within
from tests.support.feeding import wait_until


@pytest.mark.parametrize("room", MUTATIONS)
def test_mutations_apply_to_the_code_as_it_is(room: str) -> None:
    for mutation in MUTATIONS[room]:
        text = (ROOT / mutation.file).read_text()
        assert text.count(mutation.before) == 1, f"stale: {mutation}"
        assert mutation.after != mutation.before
        ast.parse(text.replace(mutation.before, mutation.after))  # else it is noticed by whoever imports the file
        for test in mutation.tests:
            assert (ROOT / test).exists(), f"{mutation} is run by {test}"


HANGS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


def test_tests_that_hang_are_ended_with_what_they_have_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutations, "END_S", 0.1)
    assert run_within(0.5, [sys.executable, "-c", HANGS], tmp_path, dict(os.environ)) is None
    wait_until(lambda: not [path for path in Path("/proc").glob("[0-9]*") if _folder_of(path) == tmp_path])
    done = run_within(60.0, [sys.executable, "-c", "print('told'); exit(3)"], tmp_path, dict(os.environ))
    assert done is not None
    assert (done.returncode, done.stdout) == (3, "told\n")


def _folder_of(process: Path) -> Path | None:
    try:
        return (process / "cwd").readlink()
    except OSError:  # it is over, or another's
        return None
