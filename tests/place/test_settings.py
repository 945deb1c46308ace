"""Where a database is, and who we are there: nothing of it is told, whatever a driver says."""

from __future__ import annotations

import pickle
from urllib.parse import quote

import pytest

from anabranch.errors import DatabaseError
from anabranch.place.databases.settings import Settings, settings_of

CANARY = r"it's a \canary% of=45 char"


def told(**options: str) -> Settings:
    return settings_of("crm", {f"ANABRANCH_DATABASE_CRM_{key}": value for key, value in options.items()})


@pytest.mark.parametrize(
    "said",
    [
        "{dsn}", 'invalid connection option in "{dsn}"', "password={password}", "PASSWORD = '{quoted}' host=x",
        "postgresql://u:{escaped}@h/db is no URI", "user 'u' with {password}", "{password}{password}",
        "sslpassword={password}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["PASSWORD", "SSLPASSWORD"])
def test_a_text_of_a_driver_loses_the_password(said: str, key: str) -> None:
    settings = told(HOST="h", USER="u", **{key: CANARY})
    quoted = CANARY.replace("\\", "\\\\").replace("'", "\\'")
    text = said.format(dsn=settings.dsn, password=CANARY, quoted=quoted, escaped=quote(CANARY, safe=""))
    assert "canary" not in settings.stripped(text)


def test_settings_show_their_name_alone() -> None:
    settings = told(HOST="h", PASSWORD=CANARY)
    assert "canary" not in repr(settings) + str(settings) + f"{settings}"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_what_is_wrong_with_a_setting_is_said_without_it() -> None:
    for options in ({"TIMEOUT": CANARY}, {"RETRIES": "-1"}):
        with pytest.raises(DatabaseError, match="is a number, 0 or more") as error:
            told(**options)
        assert "canary" not in str(error.value)
    with pytest.raises(DatabaseError, match="cannot name a database"):
        settings_of("no; name")


def test_options_of_tls_are_passed_on() -> None:
    settings = told(HOST="h", SSLMODE="verify-full", SSLROOTCERT="/my certs/root.crt", TIMEOUT="7", RETRIES="1")
    assert settings.dsn == "host='h' sslmode='verify-full' sslrootcert='/my certs/root.crt'"
    assert (settings.limits.timeout_s, settings.limits.retries) == (7.0, 1)
