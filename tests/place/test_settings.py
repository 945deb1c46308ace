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
        "sslpassword={password}", "cannot read '{quoted}'", "{escaped} is no host",
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["PASSWORD", "SSLPASSWORD"])
def test_a_text_of_a_driver_loses_the_password(said: str, key: str) -> None:
    settings = told(HOST="h", USER="u", **{key: CANARY})
    quoted = CANARY.replace("\\", "\\\\").replace("'", "\\'")
    text = said.format(dsn=settings.dsn, password=CANARY, quoted=quoted, escaped=quote(CANARY, safe=""))
    assert "canary" not in settings.stripped(text)


@pytest.mark.parametrize(
    "said", ["bad: postgres://u:canary@h/db", "password=canary", "PASSWORD = 'a \\'canary' x", "sslpassword='canary'"]
)
def test_a_password_that_we_do_not_know_goes_with_the_text_around_it(said: str) -> None:
    """One that a service file has, say."""
    assert "canary" not in (left := settings_of("crm", {}).stripped(f"{said} and more"))
    assert left.endswith("and more")


def test_settings_show_their_name_alone() -> None:
    settings = told(HOST="h", PASSWORD=CANARY)
    assert "canary" not in repr(settings) + str(settings) + f"{settings}"
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_what_is_wrong_with_a_setting_is_said_without_it() -> None:
    for options in ({"TIMEOUT": CANARY}, {"RETRIES": "-1"}):
        with pytest.raises(DatabaseError, match="is a number from 0 to") as error:
            told(**options)
        assert "canary" not in str(error.value)
    with pytest.raises(DatabaseError, match="cannot name a database"):
        settings_of("no; name")


def test_options_of_tls_are_passed_on() -> None:
    settings = told(HOST="h", SSLMODE="verify-full", SSLROOTCERT="/my certs/root.crt", TIMEOUT="7", RETRIES="1")
    assert settings.dsn == "host='h' sslmode='verify-full' sslrootcert='/my certs/root.crt'"
    assert (settings.limits.timeout_s, settings.limits.retries) == (7.0, 1)


def test_databases_whose_names_begin_alike() -> None:
    """What is said of `shop_eu` is not said of `shop`."""
    said = {
        "SHOP_HOST": "a", "SHOP_EU_HOST": "b", "SHOP_EU_PASSWORD": CANARY, "SHOP_EU_TIMEOUT": "5", "SHOP_TIMEOUT": "7",
        "SHOP_SSL_MIN_PROTOCOL_VERSION": "TLSv1.3", "SHOP_PASSWRD": "x", "SHOP_EU_WEST_USER": "u",
    }  # fmt: skip
    environment = {f"ANABRANCH_DATABASE_{key}": value for key, value in said.items()}
    shop, eu = settings_of("shop", environment), settings_of("shop_eu", environment)
    assert shop.options == {"host": "a", "ssl_min_protocol_version": "TLSv1.3", "passwrd": "x"}
    assert eu.options == {"host": "b", "password": CANARY}
    assert (shop.limits.timeout_s, eu.limits.timeout_s) == (7, 5)


@pytest.mark.parametrize(("key", "value"), [
    ("TIMEOUT", "soon"), ("TIMEOUT", "-1"), ("TIMEOUT", "inf"), ("TIMEOUT", "nan"), ("TIMEOUT", "1e9"), ("RETRIES", "inf"),
    ("RETRIES", "nan"),
])  # fmt: skip
def test_limits_that_are_none(key: str, value: str) -> None:
    with pytest.raises(DatabaseError, match=f"ANABRANCH_DATABASE_SHOP_{key} is a number from 0 to"):
        settings_of("shop", {f"ANABRANCH_DATABASE_SHOP_{key}": value})


def test_an_option_that_is_no_text_is_told_by_its_name() -> None:
    """A driver would fail with an error that has all options in it."""
    with pytest.raises(DatabaseError, match="ANABRANCH_DATABASE_CRM_PASSWORD is not in UTF-8") as caught:
        told(PASSWORD="canary\udcff")
    assert "canary" not in repr(caught.value)
