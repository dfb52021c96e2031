"""A front of its own for the tests, and a client that shows every byte."""

import base64
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

DEV = Path(__file__).resolve().parent.parent
PASSWORD = "correct horse"
START_SECONDS = 30.0
ANSWER_SECONDS = 30.0


class FrontProcess:
    """Starts a front in a folder that goes away with it."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="front-test-")
        folder = Path(self._folder.name)
        self.port = _free_port()
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [
                sys.executable,
                DEV / "clickhouse_front.py",
                f"--path={folder / 'data'}",
                f"--port={self.port}",
            ],
            env=os.environ | {"CLICKHOUSE_PASSWORD": PASSWORD},
            stderr=self._log,
        )
        self._wait_ready()

    def close(self) -> float:
        """Ends the front and returns how long that took."""
        started = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait(5)
        self._log.close()
        self._folder.cleanup()
        return time.monotonic() - started

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECONDS)

    def query(self, text: str | bytes = b"", method="POST", headers=None, **arguments):
        """One request on a connection of its own; returns (status, headers, body)."""
        with contextlib.closing(self.connection()) as connection:
            return ask(connection, text, method, headers, **arguments)

    def rows(self, text: str, **arguments) -> list[dict]:
        status, _, body = self.query(f"{text} FORMAT JSONEachRow", **arguments)
        assert status == 200, body
        return [json.loads(line) for line in body.splitlines()]

    def raw(self, text: str, headers: dict | None = None, **arguments) -> socket.socket:
        """Sends a query over a plain socket, which is then the caller's to read or to close."""
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_SECONDS)
        lines = [f"POST /?{urlencode(arguments)} HTTP/1.1", "Host: localhost"]
        sent = (headers or {}) | basic() | {"Content-Length": str(len(text.encode()))}
        lines += [f"{name}: {value}" for name, value in sent.items()]
        raw.sendall(("\r\n".join(lines) + "\r\n\r\n" + text).encode())
        return raw

    def in_background(self, text: str, **arguments) -> "Background":
        return Background(self, text, arguments)

    def running_ids(self) -> set[str]:
        found = self.rows("SELECT query_id FROM system.processes", query_id="looking")
        return {row["query_id"] for row in found} - {"looking"}

    def wait_running(self, query_id: str, expected: bool = True, seconds: float = 10.0) -> None:
        deadline = time.monotonic() + seconds
        while (query_id in self.running_ids()) != expected:
            assert time.monotonic() < deadline, f"{query_id}: never seen as running={expected}"
            time.sleep(0.02)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if self.query(method="GET", path="/ping")[0] == 200:
                    return
            self._log.seek(0)
            assert self.process.poll() is None, self._log.read()
            assert time.monotonic() < deadline, self._log.read()
            time.sleep(0.05)


class Background:
    """A query on a thread of its own."""

    def __init__(self, front: FrontProcess, text: str, arguments: dict):
        self.answer = None
        self._thread = threading.Thread(target=self._run, args=(front, text, arguments))
        self._thread.start()

    def _run(self, front: FrontProcess, text: str, arguments: dict) -> None:
        try:
            self.answer = front.query(text, **arguments)
        except Exception as error:
            self.answer = error

    def wait(self, seconds: float = ANSWER_SECONDS):
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "no answer"
        return self.answer


def ask(connection, text=b"", method="POST", headers=None, path="/", **arguments):
    """One request; returns (status, headers, body)."""
    headers = basic() if headers is None else headers
    body = text.encode() if isinstance(text, str) else text
    connection.request(method, f"{path}?{urlencode(arguments)}", body or None, headers)
    response = connection.getresponse()
    return response.status, response.headers, response.read()


def basic(user: str = "default", password: str = PASSWORD) -> dict[str, str]:
    encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {encoded}"}


def read_to_end(raw: socket.socket) -> bytes:
    """Everything until the server closes."""
    pieces = []
    while piece := raw.recv(1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
