"""What can be a name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.control.table_files import table_file
from anabranch.plan.names import LONGEST_NAME_BYTES, same_name, why_not_a_name


@pytest.mark.parametrize("name", ["q", "trades_2", "t-5", "my stream", "größte", "東京", "हिन्दी", "_x", "2024", "é"])
def test_names(name: str) -> None:
    assert why_not_a_name(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "holds '.'"),
        ("..", "holds '.'"),
        ("../../x", "holds '.'"),
        ("a/b", "holds '/'"),
        ("/a", "holds '/'"),
        ("a\\b", r"holds '\\'"),
        ("a:b", "holds ':'"),
        ("a@5", "holds '@'"),
        ("a*", r"holds '*'"),
        ("a\x00", r"holds '\x00'"),
        ("a\nb", r"holds '\n'"),
        ("a\u200bb", r"holds '\u200b'"),
        ("a\u202eb", r"holds '\u202e'"),
        ("a\ud800", r"holds '\ud800'"),
        (" a", "begins or ends with ' '"),
        ("a ", "begins or ends with ' '"),
        ("-rf", "begins or ends with '-'"),
        ("a  b", "two spaces"),
        ("x" * (LONGEST_NAME_BYTES + 1), "takes 121 bytes"),
        ("é" * (LONGEST_NAME_BYTES // 2 + 1), "takes 122 bytes"),
        ("e\u0301", "decomposed"),
    ],
)
def test_what_is_no_name(name: str, reason: str) -> None:
    assert reason in (why_not_a_name(name) or "")


@given(st.text(min_size=1, max_size=LONGEST_NAME_BYTES + 10))
def test_a_name_is_one_part_of_a_path(name: str) -> None:
    if why_not_a_name(name) is None:
        assert Path("a", name).parts == ("a", name)
        assert os.path.normpath(f"a/{name}") == f"a/{name}"
        assert not name.startswith((".", "-"))


@given(st.text(min_size=1, max_size=8), st.integers(0, 99))
def test_a_reading_of_a_table_is_no_table(name: str, batch: int) -> None:
    stem = table_file(name, batch).removeprefix("tables/").removesuffix(".arrow")
    assert why_not_a_name(stem) is not None
    assert table_file("t") == "tables/t.arrow"


def test_case_does_not_tell_names_apart() -> None:
    assert same_name("Größe", "GRÖSSE".replace("SS", "ß"))
    assert not same_name("a", "b")
