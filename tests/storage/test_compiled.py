"""Compiled kernels are kept for all processes of a user, wherever the sources are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
import numpy as np
from anabranch.engine.kernels.hashing import hash_words
out = np.zeros(3, np.uint64)
hash_words(np.arange(3, dtype=np.uint64), out)
hits, misses = (sum(counted.values()) for counted in (hash_words.stats.cache_hits, hash_words.stats.cache_misses))
print(hits, misses, out.tolist())
"""


def start(cache: Path, sources: Path = ROOT) -> subprocess.Popen[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(sources)}
    environment.pop("NUMBA_CACHE_DIR", None)
    return subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, env=environment, cwd=cache)


def told(process: subprocess.Popen[str]) -> tuple[int, int, str]:
    """How often a kernel was loaded, how often compiled, and what it gave."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    hits, misses, values = out.split(" ", 2)
    return int(hits), int(misses), values


def files(cache: Path) -> list[Path]:
    return sorted(cache.glob("anabranch/kernels/*/*"))


def test_a_kernel_is_compiled_once_for_all_clones_and_again_if_its_file_is_torn(tmp_path: Path) -> None:
    assert told(start(tmp_path))[:2] == (0, 1)
    kept = files(tmp_path)
    assert kept
    assert {path.suffix for path in kept} == {".nbc"}
    for path in kept:
        path.write_bytes(path.read_bytes()[:100])
    assert told(start(tmp_path))[:2] == (0, 1), "it is torn"
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "anabranch", clone / "anabranch", ignore=shutil.ignore_patterns("__pycache__"))
    assert told(start(tmp_path, clone))[:2] == (1, 0)
    assert files(tmp_path) == kept
    with open(clone / "anabranch" / "engine" / "kernels" / "memory.py", "a") as source:
        source.write("# another\n")
    assert told(start(tmp_path, clone))[:2] == (0, 1), "another kernel may be compiled into it"


def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    both = [start(tmp_path) for _ in range(2)]
    (_, _, first), (_, _, second) = map(told, both)
    hits, misses, third = told(start(tmp_path))
    assert (hits, misses) == (1, 0)
    assert first == second == third
    assert {path.suffix for path in files(tmp_path)} == {".nbc"}
