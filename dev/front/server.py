"""The HTTP server: takes requests, routes them, writes answers."""

import contextlib
import itertools
import socket
import socketserver
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from . import query, request, sql
from .engine import Engine, Running
from .errors import EXCEPTION_FORMS, FrontError, make_error
from .response import IDLE_SECONDS, ResponseWriter, held_back, result_headers

DEFAULT_FORMAT = "TabSeparated"
MAX_QUERY_BYTES = 1 << 20
MAX_DRAIN_BYTES = 64 << 20
DEFAULT_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Front:
    """What all requests share."""

    engine: Engine
    accounts: request.Accounts
    exception_form: str


class Handler(BaseHTTPRequestHandler):
    """One client connection."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server: "FrontServer"

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_args) -> None:
        """Requests are logged by `_log`, without URLs: those may carry secrets."""

    def _answer(self) -> None:
        self._front = self.server.front
        path, values = request.url_arguments(self.path)
        self._body = request.body_pieces(self.headers, self.rfile)
        self._writer = ResponseWriter(
            self.connection,
            chunked=self.request_version != "HTTP/1.0",
            keep_alive=not self.close_connection,
            exception_form=self._exception_form(),
        )
        started = time.monotonic()
        outcome = "ok"
        try:
            if path in ("/ping", "/replicas_status") or (
                path == "/" and self.command == "GET" and not values.get("query")
            ):
                self._plain(200, b"Ok.\n")
            elif path != "/":
                self._plain(404, f"There is no handle {path}\n".encode())
            else:
                self._query(values)
            self._drain_body()
        except FrontError as error:
            outcome = f"code {error.code}"
            self._fail(error)
        except (query.ClientGone, OSError) as error:
            outcome = f"client gone ({type(error).__name__})"
            self._writer.keep_alive = False
        except ValueError as error:
            outcome = "bad request"
            self._fail(make_error(36, "BAD_ARGUMENTS", str(error), self._front.engine.version))
        self.close_connection = not self._writer.keep_alive
        self.connection.settimeout(IDLE_SECONDS)
        query_id = self._writer.headers.get("X-ClickHouse-Query-Id", "-")
        seconds = time.monotonic() - started
        self._log(f"{self.command} {path!r} {query_id} {outcome} {seconds:.3f}s")

    def _query(self, values: dict[str, str]) -> None:
        engine = self._front.engine
        user = self._front.accounts.authenticate(self.headers, values, engine.version)
        if request.is_form(self.headers):
            values |= request.form_arguments(self.headers, self._body)
        arguments = request.Arguments(values)
        if arguments.unsupported:
            raise query.not_implemented(engine, f"the parameter `{arguments.unsupported}`")
        if self.headers.get("Content-Encoding"):
            raise query.not_implemented(engine, "a compressed request")
        self._set_timeouts(arguments)
        head, rest = self._query_text(values.get("query", ""))
        with engine.register(arguments.query_id, user) as running:
            self._writer.headers["X-ClickHouse-Query-Id"] = running.query_id
            self._route(head, rest, arguments, running)

    def _route(self, head: bytes, rest: Iterator[bytes], arguments: request.Arguments, running: Running) -> None:
        engine = self._front.engine
        # Bytes of rows need not be UTF-8, and the engine must get back what came in.
        text = head.decode("utf-8", "surrogateescape")
        spec = self._spec(text, arguments)
        parsed = sql.parse_insert(text)
        self._writer.headers |= result_headers(running.query_id, spec.format, engine.timezone)
        if parsed:
            first = text[parsed.data_start :].encode("utf-8", "surrogateescape")
            data = (piece for piece in itertools.chain([first], rest) if piece)
            query.insert(engine, running, spec, parsed, data)
            self._send_all([], running)
            return
        if next(rest, b""):
            message = f"the query is longer than {MAX_QUERY_BYTES} bytes"
            raise make_error(62, "SYNTAX_ERROR", message, engine.version)
        statement = sql.parse_kill(text)
        if statement:
            self._send_all([query.kill(engine, spec, statement)], running)
            return
        result = query.Result(engine, running, spec)
        try:
            pieces = result.pieces(self._client_gone(arguments))
            if arguments.is_on("wait_end_of_query"):
                with held_back(pieces) as held:
                    self._send_all(held, running)
            else:
                self._send_all(pieces, running)
        finally:
            result.close()

    def _send_all(self, pieces, running: Running) -> None:
        pieces = iter(pieces)
        # The first piece decides on the status, so headers wait for it.
        first = next(pieces, b"")
        self._writer.start(200, running.progress)
        for piece in itertools.chain([first], pieces):
            self._writer.write(piece)
        self._writer.finish()

    def _spec(self, text: str, arguments: request.Arguments) -> query.QuerySpec:
        settings = arguments.settings
        if self.command == "GET" and settings.get("readonly", "0") == "0":
            settings["readonly"] = "2"
        return query.QuerySpec(
            text=text,
            format=sql.format_clause(text)
            or self.headers.get("X-ClickHouse-Format")
            or arguments.values.get("default_format")
            or DEFAULT_FORMAT,
            database=self.headers.get("X-ClickHouse-Database") or arguments.values.get("database"),
            params=arguments.params,
            settings=settings,
        )

    def _query_text(self, from_url: str) -> tuple[bytes, Iterator[bytes]]:
        """The query, URL part first, and what is left of the body (rows of an INSERT)."""
        head = bytearray(from_url.encode("utf-8", "surrogateescape"))
        if head:
            head += b"\n"
        while len(head) < MAX_QUERY_BYTES:
            piece = next(self._body, None)
            if piece is None:
                break
            head += piece
        return bytes(head), self._body

    def _set_timeouts(self, arguments: request.Arguments) -> None:
        text = arguments.values.get("http_send_timeout", "")
        seconds = float(text) if text else DEFAULT_TIMEOUT_SECONDS
        self.connection.settimeout(seconds or None)

    def _client_gone(self, arguments: request.Arguments):
        """A check whether the client left, if the query says that it matters."""
        if not arguments.is_on("cancel_http_readonly_queries_on_client_close"):
            return lambda: False
        # The connection itself has a timeout, and Python waits for it before it asks.
        raw = socket.socket(fileno=socket.dup(self.connection.fileno()))

        def gone() -> bool:
            try:
                return not raw.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True

        return gone

    def _plain(self, status: int, body: bytes) -> None:
        self._writer.headers["Content-Type"] = "text/html; charset=UTF-8"
        self._writer.start(status, {})
        self._writer.write(body)
        self._writer.finish()

    def _fail(self, error: FrontError) -> None:
        with contextlib.suppress(OSError):
            if not self._writer.headers_sent:
                self._drain_body()
            self._writer.fail(error)

    def _exception_form(self) -> str:
        asked = self.headers.get("X-Front-Exception-Form")
        return asked if asked in EXCEPTION_FORMS else self._front.exception_form

    def _drain_body(self) -> None:
        """Reads what is left of the request, so that the answer isn't lost in a reset."""
        left = MAX_DRAIN_BYTES
        try:
            for piece in self._body:
                left -= len(piece)
                if left < 0:
                    self._writer.keep_alive = False
                    return
        except (OSError, ValueError):
            self._writer.keep_alive = False

    def _log(self, line: str) -> None:
        print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)


class FrontServer(socketserver.ThreadingTCPServer):
    """A thread for each client: queries run side by side, and the engine does the work."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], front: Front):
        self.front = front
        super().__init__(address, Handler)

    def handle_error(self, _request, client_address) -> None:
        error = sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handle_error(_request, client_address)
