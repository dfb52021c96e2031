"""Writes a response as a ClickHouse server does, byte by byte."""

import contextlib
import json
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from email.utils import formatdate
from http import HTTPStatus

from . import formats
from .errors import FORM_BARE, FORM_TAGGED, FrontError, exception_block, new_tag

MAX_CHUNK_BYTES = 1 << 20
MAX_BUFFERED_IN_MEMORY = 16 << 20
# How long a connection may wait for its next request.
IDLE_SECONDS = 30.0

SUMMARY_FIELDS = [
    "read_rows",
    "read_bytes",
    "written_rows",
    "written_bytes",
    "total_rows_to_read",
    "result_rows",
    "result_bytes",
]


class ResponseWriter:
    """One response on one connection."""

    def __init__(self, connection: socket.socket, chunked: bool, keep_alive: bool, exception_form: str):
        self._connection = connection
        self._chunked = chunked
        self._exception_form = exception_form
        # Without chunks only the end of the connection tells where the response ends.
        self.keep_alive = keep_alive and chunked
        self.tag = new_tag()
        self._started_at = time.monotonic()
        self.headers: dict[str, str] = {}
        self.headers_sent = False

    def start(self, status: int, progress: dict[str, int]) -> None:
        """Sends status and headers; whatever goes wrong later can't change them."""
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        tagged = self._exception_form == FORM_TAGGED
        headers = {
            "Date": formatdate(usegmt=True),
            "Connection": "Keep-Alive" if self.keep_alive else "Close",
            **({"Keep-Alive": f"timeout={IDLE_SECONDS:.0f}, max=9999"} if self.keep_alive else {}),
            **({"Transfer-Encoding": "chunked"} if self._chunked else {}),
            **self.headers,
            # Servers that know no frame announce no tag.
            **({"X-ClickHouse-Exception-Tag": self.tag} if tagged else {}),
            "X-ClickHouse-Summary": self._summary(progress),
        }
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.headers_sent = True
        self._connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8"))

    def write(self, data: memoryview | bytes) -> None:
        """Sends data in chunks that are as large as the server's."""
        view = memoryview(data)
        for start in range(0, len(view), MAX_CHUNK_BYTES):
            part = view[start : start + MAX_CHUNK_BYTES]
            if self._chunked:
                self._send_all([b"%x\r\n" % len(part), part, b"\r\n"])
            else:
                self._send_all([part])

    def finish(self) -> None:
        """Ends the response cleanly."""
        if self._chunked:
            self._connection.sendall(b"0\r\n\r\n")

    def fail(self, error: FrontError) -> None:
        """Reports a failure: by status if that is still possible, else inside the body."""
        if not self.headers_sent:
            self.headers["X-ClickHouse-Exception-Code"] = str(error.code)
            self.headers["Content-Type"] = "text/plain; charset=UTF-8"
            self.start(error.status, {})
            self.write(error.text.encode("utf-8", "surrogateescape") + b"\n")
            self.finish()
            return
        self.keep_alive = False
        self.write(exception_block(error, self.tag, self._exception_form))
        if self._exception_form == FORM_BARE:
            # Those servers ended the response as if nothing had happened.
            self.finish()

    def _send_all(self, parts: list) -> None:
        left = [memoryview(part) for part in parts]
        while left:
            sent = self._connection.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if left:
                left[0] = left[0][sent:]

    def _summary(self, progress: dict[str, int]) -> str:
        summary = {name: str(progress.get(name, 0)) for name in SUMMARY_FIELDS}
        summary["elapsed_ns"] = str(int((time.monotonic() - self._started_at) * 1e9))
        return json.dumps(summary, separators=(",", ":"))


@contextlib.contextmanager
def held_back(pieces: Iterable[memoryview]) -> Iterator[Iterator[bytes]]:
    """For `wait_end_of_query`: takes the whole result first, so that a failure has a status."""
    with tempfile.SpooledTemporaryFile(MAX_BUFFERED_IN_MEMORY) as store:
        for piece in pieces:
            store.write(piece)
        store.seek(0)
        yield iter(lambda: store.read(MAX_CHUNK_BYTES), b"")


def result_headers(query_id: str, format_name: str, timezone: str) -> dict[str, str]:
    """The headers that every answer to a query carries."""
    return {
        "Content-Type": formats.content_type(format_name),
        "Access-Control-Expose-Headers": (
            "X-ClickHouse-Query-Id,X-ClickHouse-Summary,X-ClickHouse-Server-Display-Name,"
            "X-ClickHouse-Format,X-ClickHouse-Timezone,X-ClickHouse-Exception-Code,"
            "X-ClickHouse-Exception-Tag"
        ),
        "X-ClickHouse-Server-Display-Name": "chdb-front",
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Format": format_name,
        "X-ClickHouse-Timezone": timezone,
    }
