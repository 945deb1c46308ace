"""Compiled kernels, kept for all processes of a user: a kernel is compiled once on a machine, whichever clone or
environment it is loaded from.

numba keeps what it compiles beside the source, in an index and numbered files for each function. A fresh clone compiles
everything again then; and of two processes that compile at once one may number its file as the other does, so that a third
loads the one for the other. Here every signature of a kernel has a file of its own:

    ~/.cache/anabranch/kernels/0.1.0-1f2e3d4c-numba0.68.1-py311-znver4/engine.kernels.runs.merge-9c0d….nbc

The folder is named by all that compiled code depends on: the sources of all kernels (one may be compiled into another),
numba, Python, the processor. A file is written under another name and renamed, so that it is there whole or not at all,
and it holds the signature, which is compared when it is loaded. What two processes write under one name is the same. A file
that cannot be read, or written, costs a compilation and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import sys
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import binding
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from anabranch.version import __version__

PACKAGE = Path(__file__).parents[1]

MOST_FOLDERS = 8
"""So many folders are kept: each version of the sources, of numba or of Python makes one of some megabytes."""


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `numba.njit`; what is cached is kept in the user's folder, if there is one, else where numba would keep it."""

    def compiled(function: Callable[..., Any]) -> Any:
        folder = kernel_folder() if cache else None
        made = numba.njit(cache=cache and folder is None, **options)(function)
        if folder is not None and hasattr(made, "_cache"):  # with NUMBA_DISABLE_JIT it is the function
            made._cache = KernelFiles(function, folder)
        return made

    return compiled


class KernelFiles(_Cache):  # type: ignore[misc]
    """The compiled signatures of one kernel."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._function, self._folder = function, folder
        self._name = f"{function.__module__.removeprefix('anabranch.')}.{function.__qualname__}"
        self._is_enabled = True

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for a signature; None if it is to be compiled."""
        target_context.refresh()
        path, key = self._place(sig, target_context.codegen())
        if not self._is_enabled:
            return None
        # What is wrong with a file is not known beforehand: another machine may have torn it, or another numba written it.
        with contextlib.suppress(Exception):
            found, code = pickle.loads(path.read_bytes())
            if found == key:
                return CompileResult._rebuild(target_context, *code)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if not self._is_enabled or data.library.has_dynamic_globals or any(not each.can_cache for each in data.lifted):
            return
        path, key = self._place(sig, data.codegen)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            unfinished.write_bytes(dumps((key, data._reduce())))
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()

    def enable(self) -> None:
        self._is_enabled = True

    def disable(self) -> None:
        self._is_enabled = False

    def flush(self) -> None:
        for path in self._folder.glob(f"{self._name}-*.nbc"):
            path.unlink(missing_ok=True)

    def _place(self, sig: Any, codegen: Any) -> tuple[Path, tuple[Any, ...]]:
        """The file of a signature, and all that it is told by."""
        key = (sig, codegen.magic_tuple(), self._function.__code__.co_code)
        return self._folder / f"{self._name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc", key


@cache
def kernel_folder() -> Path | None:
    """Where compiled kernels are kept: below `NUMBA_CACHE_DIR` if that is set, else in the user's cache folder, else beside
    the sources; None if neither can be written, or the sources are not files."""
    root = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for base in (Path(root) / "anabranch" / "kernels", PACKAGE / "__pycache__"):
        try:
            folder = base / _version()
            if not folder.is_dir():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _remove_oldest(base)
        except OSError:
            continue
        # What is loaded is run: a folder that others may write to is not taken.
        if os.access(folder, os.W_OK | os.X_OK) and (os.name == "nt" or folder.stat().st_uid == os.geteuid()):
            return folder
    return None


def _version() -> str:
    sources = hashlib.sha256()
    for path in sorted([*PACKAGE.glob("**/kernels.py"), *PACKAGE.glob("**/kernels/*.py"), Path(__file__)]):
        sources.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    return f"{__version__}-{sources.hexdigest()[:8]}-numba{numba.__version__}-{python}-{binding.get_host_cpu_name()}"


def _remove_oldest(base: Path) -> None:
    """Removes folders of other versions, but for the newest. Whoever still uses one compiles what it lacks again."""
    folders = sorted((path for path in base.iterdir() if "-numba" in path.name), key=lambda path: path.stat().st_mtime)
    for folder in folders[:-MOST_FOLDERS]:
        shutil.rmtree(folder, ignore_errors=True)
