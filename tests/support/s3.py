"""An S3 server on loopback: moto, in a process of its own, so that everything that pyarrow sends goes over a socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.fs as pafs

KEY, SECRET, REGION = "someone", "secret", "eu-west-1"
START_S = 60.0
"""How long the server may take, on a busy machine."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own for a test."""

    port: int
    name: str

    def uri(self, path: str = "") -> str:
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region={REGION}"
        return f"s3://{KEY}:{SECRET}@{self.name}/{path}?{options}"

    @property
    def filesystem(self) -> pafs.FileSystem:
        return _connected(self.port)

    def paths(self, folder: str = "") -> list[str]:
        """All objects below a folder, from there on."""
        root = f"{self.name}/{folder}".rstrip("/")
        found = self.filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(info.path.removeprefix(f"{root}/") for info in found if info.is_file)

    def read(self, path: str) -> bytes:
        return bytes(self.filesystem.open_input_file(f"{self.name}/{path}").read())

    def write(self, path: str, content: bytes) -> None:
        with self.filesystem.open_output_stream(f"{self.name}/{path}", compression=None) as stream:
            stream.write(content)

    def delete(self, path: str) -> None:
        self.filesystem.delete_file(f"{self.name}/{path}")


@contextlib.contextmanager
def s3_server() -> Iterator[int]:
    """Starts a server; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert server.poll() is None, "the S3 server did not start"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)
        yield port
    finally:
        server.kill()
        server.wait()


def new_bucket(port: int) -> Bucket:
    name = f"test-{uuid.uuid4().hex[:16]}"
    _connected(port).create_dir(name)
    return Bucket(port, name)


def _connected(port: int) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, endpoint_override=f"127.0.0.1:{port}", scheme="http", region=REGION,
        allow_bucket_creation=True,
    )  # fmt: skip
