"""Who runs the PostgreSQL of the tests where they run as root."""

from __future__ import annotations

import os
import pwd

import pytest

from bench import postgres


@pytest.mark.parametrize(("there", "why"), [
    (("postgres", "pgserver"), None), (("pgserver",), None),
    ((), "PostgreSQL refuses to run as root, and there is no user postgres or pgserver: add one (useradd --system)"),
])  # fmt: skip
def test_root_has_another_user_run_it_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], why: str | None
) -> None:
    someone = pwd.getpwuid(os.getuid())

    def named(name: str) -> pwd.struct_passwd:
        if name not in there:
            raise KeyError(name)
        return someone

    monkeypatch.setattr(postgres, "binaries", lambda: postgres.Path("/usr/bin"))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", named)
    assert postgres.why_not() == why
