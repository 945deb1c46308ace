"""Where a database is, and who we are there: told by the machine, by the name of the database.

For a database `crm` each environment variable `ANABRANCH_DATABASE_CRM_<OPTION>` is a connection option of libpq
(`ANABRANCH_DATABASE_CRM_HOST`, `_PORT`, `_DBNAME`, `_USER`, `_PASSWORD`, `_PASSFILE`, `_SSLMODE`, `_SSLROOTCERT`, …), and
`ANABRANCH_DATABASE_CRM_TIMEOUT` is how many seconds a call may take. If none is set, `crm` is a service of the service file
(`PGSERVICEFILE`, else `~/.pg_service.conf`). A password may also stand in the passfile (`PGPASSFILE`, else `~/.pgpass`).
Workers read these on the machine that they run on.

>>> told = settings_of("crm", {"ANABRANCH_DATABASE_CRM_HOST": "db1", "ANABRANCH_DATABASE_CRM_PASSWORD": "it's"})
>>> told.dsn
"host='db1' password='it\\\\'s'"
>>> told
Settings(name='crm')
>>> told.stripped("cannot log in with it's at db1")
'cannot log in with … at db1'
>>> settings_of("crm", {}).dsn
"service='crm'"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from anabranch.errors import DatabaseError
from anabranch.place.databases.protocol import Limits

PREFIX = "ANABRANCH_DATABASE_"
OURS = ("timeout", "retries")
"""Options that are ours, not libpq's."""

LIBPQ = (
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname", "fallback_application_name",
    "gssdelegation", "gssencmode", "gsslib", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "krbsrvname", "load_balance_hosts", "options", "passfile", "password", "port", "replication",
    "require_auth", "requirepeer", "requiressl", "service", "servicefile", "ssl_max_protocol_version",
    "ssl_min_protocol_version", "sslcert", "sslcertmode", "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslmode",
    "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "user",
)  # fmt: skip
"""Options of libpq. Others are handed on as well, so that it says what it does not know."""

LONGEST_S, MOST_RETRIES = 86_400.0, 1_000
"""No call may take longer, or is made more often."""

SECRETS = ("password", "sslpassword")
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
ANY_DSN = re.compile(r"(?i)\b(postgres(?:ql)?://\S+|(?:ssl)?password\s*=\s*('(?:[^'\\]|\\.)*'|\S+))")


@dataclass(frozen=True)
class Settings:
    """How to reach a database. Its text shows the name and nothing else."""

    name: str
    options: Mapping[str, str] = field(repr=False)
    limits: Limits = field(default=Limits(), repr=False)

    @property
    def dsn(self) -> str:
        """The options as libpq reads them."""
        return " ".join(f"{key}={_quoted(value)}" for key, value in self.options.items())

    def stripped(self, text: str) -> str:
        """A text, of a driver say, without anything that only these settings know."""
        for key in SECRETS:
            if secret := self.options.get(key):
                for form in {secret, _quoted(secret)[1:-1], quote(secret, safe="")}:
                    text = text.replace(form, "…")
        return ANY_DSN.sub("…", text.replace(self.dsn, "…"))


def settings_of(name: str, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a database, as this machine tells them."""
    if not WORD.fullmatch(name):
        raise DatabaseError(f"{name!r} cannot name a database: a name is a word of letters, digits and _")
    own = f"{PREFIX}{name.upper()}_"
    told = os.environ if environment is None else environment
    known = {key[len(own) :].lower(): value for key, value in sorted(told.items()) if key.startswith(own)}
    options = {key: value for key, value in known.items() if not _is_of_another(key)}
    limits = Limits()
    if options.keys() & set(OURS):
        retries = int(_number(own, options, "retries", limits.retries, MOST_RETRIES))
        limits = Limits(_number(own, options, "timeout", limits.timeout_s, LONGEST_S), retries)
    libpq = {key: value for key, value in options.items() if key not in OURS}
    for key, value in libpq.items():
        if not _is_text(value):
            raise DatabaseError(f"{own}{key.upper()} is not in UTF-8: write it in that")
    return Settings(name, libpq or {"service": name}, limits)


def _is_of_another(key: str) -> bool:
    """Whether what stands behind the name of a database is an option of one whose name goes on.

    >>> _is_of_another("eu_host"), _is_of_another("host"), _is_of_another("target_session_attrs"), _is_of_another("hots")
    (True, False, False, False)
    """
    options = (*LIBPQ, *OURS)
    return key not in options and any(key.endswith(f"_{option}") for option in options)


def _is_text(value: str) -> bool:
    """Whether a value of the environment is text: bytes that are none come as halves of letters."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _number(own: str, options: Mapping[str, str], key: str, default: float, most: float) -> float:
    given = options.get(key)
    try:
        value = default if given is None else float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:  # nor is it one that is no number
        raise DatabaseError(f"{own}{key.upper()} is a number from 0 to {most:g}: write {default:g}")
    return value


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
