"""Runs the notebook of the examples and writes down what it shows: `python -m bench.notebook`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).parents[1] / "examples" / "notebook" / "first-look.ipynb"
TIMEOUT_S = 300


def executed(folder: str) -> Any:
    """The notebook with what its cells show; files that it writes go to a folder. A cell that fails is an error."""
    notebook = nbformat.read(PATH, as_version=4)
    NotebookClient(notebook, timeout=TIMEOUT_S, resources={"metadata": {"path": folder}}).execute()
    return notebook


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(folder)
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
    notebook["metadata"] = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, PATH)
    print(f"written to {PATH.name}")


if __name__ == "__main__":
    main()
