"""Nothing is imported from a test: what several of them share is in `tests/support`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [path for folder in ("anabranch", "bench", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]


IMPORTS = re.compile(r"^\s*(?:from\s+\S+\s+import\s*(?:\([^)]*\)|.*)|import\s.*)$", re.MULTILINE)
"""What imports anything, roughly: what names no test there need not be parsed."""


def imported(text: str) -> Iterator[str]:
    """The dotted names that a file may import.

    >>> [*imported("from tests.drive.test_local import run\\nimport tests.support.oracle")]
    ['tests.drive.test_local', 'tests.drive.test_local.run', 'tests.support.oracle']
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def from_tests(text: str) -> list[str]:
    """The modules of tests that a file imports something from."""
    if not any("test_" in found for found in IMPORTS.findall(text)):
        return []
    names = {name for name in imported(text) if name.startswith(("tests.", "."))}
    return sorted(n for n in names if any(part.startswith("test_") for part in n.split(".")))


@pytest.mark.parametrize("text", [
    "from tests.drive.test_local import run", "import tests.drive.test_local", "from tests.drive import test_local",
    "from . import test_local", "from .test_local import run", "from tests.drive import (\n    test_local,\n)",
    "def late():\n    from tests.test_cli import run",
])  # fmt: skip
def test_an_import_from_a_test_is_seen(text: str) -> None:
    assert from_tests(text)


def test_nothing_is_imported_from_a_test() -> None:
    found = {str(path.relative_to(ROOT)): names for path in FILES if (names := from_tests(path.read_text()))}
    assert not found, "what tests share belongs in tests/support"
