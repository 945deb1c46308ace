"""Small wrongs are still where `tests/mutations.py` says: one that is stale is none."""

from __future__ import annotations

import ast

import pytest

from tests.mutations import MUTATIONS, ROOT


@pytest.mark.parametrize("room", MUTATIONS)
def test_mutations_apply_to_the_code_as_it_is(room: str) -> None:
    for mutation in MUTATIONS[room]:
        text = (ROOT / mutation.file).read_text()
        assert text.count(mutation.before) == 1, f"stale: {mutation}"
        assert mutation.after != mutation.before
        ast.parse(text.replace(mutation.before, mutation.after))  # else it is noticed by whoever imports the file
        for test in mutation.tests:
            assert (ROOT / test).exists(), f"{mutation} is run by {test}"
