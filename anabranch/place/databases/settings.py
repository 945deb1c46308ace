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
    options = {key[len(own) :].lower(): value for key, value in sorted(told.items()) if key.startswith(own)}
    limits = Limits()
    if options.keys() & set(OURS):
        retries = int(_number(own, options, "retries", limits.retries))
        limits = Limits(_number(own, options, "timeout", limits.timeout_s), retries)
    libpq = {key: value for key, value in options.items() if key not in OURS}
    return Settings(name, libpq or {"service": name}, limits)


def _number(own: str, options: Mapping[str, str], key: str, default: float) -> float:
    given = options.get(key)
    try:
        value = default if given is None else float(given)
    except ValueError:
        value = -1.0
    if value < 0:
        raise DatabaseError(f"{own}{key.upper()} is a number, 0 or more: write {default:g}")
    return value


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
