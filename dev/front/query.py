"""Runs one query and hands its result over in pieces."""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from . import formats, sql
from .engine import Engine, Running
from .errors import FrontError, engine_error, make_error
from .pieces import PieceQueue

# What may wait between the engine and a client. A piece of the engine is one block, 65,409 rows of
# which are about 45 MB of events.
MAX_QUEUED_BYTES = 32 << 20
NOT_STREAMABLE = "Streaming query is not supported"
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class QuerySpec:
    """What a client asked for."""

    text: str
    format: str
    database: str | None = None
    params: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


class ClientGone(Exception):
    """The client closed its connection before its answer was ready."""


class Result:
    """The pieces of a running query, read on this thread while another one reads the engine."""

    def __init__(self, engine: Engine, running: Running, spec: QuerySpec):
        self._engine = engine
        self._running = running
        self._spec = spec
        self._queue = PieceQueue(MAX_QUEUED_BYTES)
        self._thread = threading.Thread(target=self._read_engine, daemon=True)
        self._thread.start()

    def pieces(self, client_gone: Callable[[], bool]) -> Iterator[memoryview]:
        """Yields what the client must see. Raises FrontError, or ClientGone."""
        while True:
            try:
                piece = self._queue.get(POLL_SECONDS)
            except TimeoutError:
                if client_gone():
                    raise ClientGone from None
                continue
            if piece is None:
                return
            _owner, view = piece
            yield view

    def close(self) -> None:
        """Stops the query if it still runs; returns when the engine let go of it."""
        self._queue.abandon()
        # A query may be too young to be listed, so asking once is not enough.
        while not self._queue.wait_end(POLL_SECONDS):
            self._running.kill()
        self._thread.join()

    def _read_engine(self) -> None:
        try:
            self._read_all()
            self._queue.end()
        except FrontError as error:
            self._queue.end(error)
        except Exception as error:
            self._queue.end(engine_error(error, self._engine.version))

    def _read_all(self) -> None:
        spec = self._spec
        text = spec.text
        if sql.mentions_processes(text):
            text = sql.replace_processes(text, self._engine.processes())
        connection = self._running.connect(spec.settings, spec.database)
        try:
            for owner, view in _results(connection, text, spec):
                if owner is not None:
                    self._running.add_progress(owner)
                if len(view) and not self._queue.put((owner, view), len(view)):
                    break
        finally:
            connection.close()


def _results(connection, text: str, spec: QuerySpec) -> Iterator[tuple[object, memoryview]]:
    """Yields (owner of the memory, bytes)."""
    # The public wrapper hides a result without rows, whose header a client needs, so this goes
    # to the binding below it.
    binding = connection._conn
    stream = None
    if formats.can_stream(spec.format):
        try:
            stream = binding.send_query(text, spec.format, params=spec.params)
        except RuntimeError as error:
            if NOT_STREAMABLE not in str(error):
                raise
    if stream is None:
        result = binding.query(text, spec.format, params=spec.params)
        yield result, _view(result)
        return
    join = formats.joiner(spec.format)
    is_first = True
    while True:
        chunk = binding.streaming_fetch_result(stream)
        if chunk is None or (chunk.rows_read() == 0 and not is_first):
            break
        view = _view(chunk)
        if len(view):
            yield chunk, join(view)
        if chunk.rows_read() == 0:
            break
        is_first = False
    end = formats.end_of_document(spec.format)
    if end:
        yield None, memoryview(end)


def _view(result) -> memoryview:
    return memoryview(result.get_memview().view()).cast("B") if result.size() else memoryview(b"")


def insert(engine: Engine, running: Running, spec: QuerySpec, parsed: sql.Insert, data: Iterable[bytes]) -> None:
    """Runs an INSERT whose rows come in pieces from the client."""
    try:
        connection = running.connect(spec.settings, spec.database, spec.params)
        try:
            inserter = connection.send_insert(parsed.statement, parsed.format)
            try:
                for piece in data:
                    inserter.append(piece)
                done = inserter.finish()
            except BaseException:
                inserter.cancel()
                raise
            running.progress.update(written_rows=done.rows_written, written_bytes=done.bytes_written)
        finally:
            connection.close()
    except FrontError:
        raise
    except RuntimeError as error:
        raise engine_error(error, engine.version) from error


def kill(engine: Engine, spec: QuerySpec, statement: sql.Kill) -> bytes:
    """Runs a KILL QUERY and returns its answer."""
    rows = engine.kill(statement)
    if not rows:
        return b""
    tuples = ", ".join(f"({', '.join(map(sql.quote, row))})" for row in rows)
    structure = "kill_status String, query_id String, user String, query String"
    return engine.admin(f"SELECT * FROM values('{structure}', {tuples})", spec.format)


def not_implemented(engine: Engine, what: str) -> FrontError:
    return make_error(48, "NOT_IMPLEMENTED", f"{what} is not supported by this front", engine.version)
