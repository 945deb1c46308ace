"""A proxy in front of a PostgreSQL on a unix socket, that interferes when so many bytes have come from the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

SOCKET = ".s.PGSQL.5432"
PIECE = 1 << 16


class CuttingProxy:
    """Hands bytes on between clients that connect to `folder` and the server whose socket is in `target`."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self._target = folder, target
        self._left: int | None = None
        self._times = 0
        self._after = 0
        self._act: Callable[[], None] = lambda: None
        self._changing = threading.Lock()
        self._open: list[socket.socket] = []
        self.interfered = 0
        """How often it did."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, after: int, act: Callable[[], None] = lambda: None, times: int = 1) -> None:
        """When so many further bytes have come from the server, `act` is called, and the connection is cut; and so again, so
        many times in all."""
        with self._changing:
            self._left, self._after, self._act, self._times = after, after, act, times

    def disarm(self) -> None:
        with self._changing:
            self._left = None

    def close(self) -> None:
        self.disarm()
        self._listener.close()
        for each in self._open:
            _cut(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self._target / SOCKET))
            except OSError:
                client.close()
                continue
            self._open += [client, server]
            for source, target, is_answer in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._hand_on, args=(source, target, is_answer), daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                passing, act = self._passing(data) if is_answer else (data, None)
                target.sendall(passing)
                if act is not None:
                    act()
                    break
        _cut(source)
        _cut(target)

    def _passing(self, data: bytes) -> tuple[bytes, Callable[[], None] | None]:
        """What of some bytes is handed on, and what is done then."""
        with self._changing:
            if self._left is None:
                return data, None
            if len(data) <= self._left:
                self._left -= len(data)
                return data, None
            passing = data[: self._left]
            self._times -= 1
            self._left = self._after if self._times > 0 else None
            self.interfered += 1
            return passing, self._act


def _cut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
