"""The engine and the queries that run in it.

chDB picks its own query ids. Every query therefore carries a marker of ours in a setting that does
nothing here, and the marker leads from the client's id to the engine's, for KILL QUERY and for
`system.processes`.
"""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import chdb

from . import sql
from .errors import engine_error, make_error

# Only engines that read from queues look at it, and it shows up in `system.processes`.
MARKER_SETTING = "stream_like_engine_insert_queue"
KILL_WAIT_SECONDS = 30.0


class Running:
    """One registered query."""

    def __init__(self, engine: "Engine", query_id: str, user: str, marker: str):
        self.query_id = query_id
        self.user = user
        self.marker = marker
        self.ended = threading.Event()
        self.progress: dict[str, int] = {}
        self.started = time.monotonic()
        self._engine = engine

    def connect(self, settings: dict[str, str], database: str | None, params: dict[str, str] | None = None):
        """A connection of its own, which is what lets queries run side by side."""
        connection = chdb.connect(self._engine.path)
        try:
            if database:
                connection.query(f"USE `{database.replace('`', '')}`")
            wanted = {"implicit_select": "0", MARKER_SETTING: self.marker}
            wanted |= {f"param_{name}": value for name, value in (params or {}).items()}
            wanted |= settings
            # A read-only session can change no settings any more, so this one comes last.
            wanted["readonly"] = wanted.pop("readonly", "0")
            for name, value in wanted.items():
                if (name, value) != ("readonly", "0"):
                    connection.query(f"SET {name} = {sql.quote(value)}")
        except BaseException:
            connection.close()
            raise
        return connection

    def add_progress(self, result) -> None:
        """Counts a piece of a result; the engine reports what was read since the last one."""
        # Not by the engine's own callback: that may come later than the first piece.
        for name, value in (
            ("read_rows", result.storage_rows_read()),
            ("read_bytes", result.storage_bytes_read()),
            ("result_rows", result.rows_read()),
            ("result_bytes", result.size()),
        ):
            self.progress[name] = self.progress.get(name, 0) + value

    def kill(self) -> None:
        """Asks the engine to stop the query; whoever reads it gets code 394."""
        self._engine.admin(f"KILL QUERY WHERE Settings['{MARKER_SETTING}'] = '{self.marker}' ASYNC")


class Engine:
    """Owns the database folder and the list of running queries."""

    def __init__(self, path: str):
        self.path = path
        # The engine lives as long as one connection does.
        self._anchor = chdb.connect(path)
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._markers = (f"front-{number}" for number in itertools.count(1))
        self.version = self.admin("SELECT version()").decode().strip()
        self.timezone = self.admin("SELECT timezone()").decode().strip()

    def admin(self, text: str, output_format: str = "TSVRaw") -> bytes:
        """Runs a query of the front's own."""
        connection = chdb.connect(self.path)
        try:
            return connection.query(text, output_format).bytes()
        finally:
            connection.close()

    @contextmanager
    def register(self, query_id: str, user: str) -> Iterator[Running]:
        """Lists a query as running; two of one id can't run at once, as on a server."""
        with self._lock:
            if query_id in self._running:
                message = f"Query with id = {query_id} is already running."
                raise make_error(216, "QUERY_WITH_SAME_ID_IS_ALREADY_RUNNING", message, self.version)
            running = Running(self, query_id, user, next(self._markers))
            self._running[query_id] = running
        try:
            yield running
        finally:
            with self._lock:
                del self._running[query_id]
            running.ended.set()

    def processes(self) -> str:
        """A subquery that shows `system.processes` with the clients' ids and users."""
        with self._lock:
            running = list(self._running.values())
        marker = f"Settings['{MARKER_SETTING}']"
        markers = _array(each.marker for each in running)
        ids = _array(each.query_id for each in running)
        users = _array(each.user for each in running)
        return (
            "(SELECT * REPLACE ("
            f"transform({marker}, {markers}, {ids}, query_id) AS query_id, "
            f"transform({marker}, {markers}, {ids}, query_id) AS initial_query_id, "
            f"transform({marker}, {markers}, {users}, user) AS user, "
            f"transform({marker}, {markers}, {users}, user) AS initial_user, "
            f"mapFilter((k, v) -> k NOT IN ('{MARKER_SETTING}', 'implicit_select'), Settings)"
            " AS Settings) "
            f"FROM (SELECT * FROM system.processes) WHERE has({markers}, {marker}))"
        )

    def kill(self, statement: sql.Kill) -> list[tuple[str, str, str, str]]:
        """KILL QUERY by what the client sees. Returns rows as the server does."""
        try:
            found = self.admin(
                f"SELECT query_id, user, query FROM {self.processes()} WHERE {statement.where}",
                "JSONCompactEachRow",
            )
        except chdb.ChdbError as error:
            raise engine_error(error, self.version) from error
        rows = []
        for query_id, user, text in _json_rows(found):
            with self._lock:
                running = self._running.get(query_id)
            if not running:
                continue
            status = "waiting"
            if statement.mode != "TEST":
                running.kill()
            if statement.mode == "SYNC" and running.ended.wait(KILL_WAIT_SECONDS):
                status = "finished"
            rows.append((status, query_id, user, text))
        return rows

    def kill_all(self, wait_seconds: float) -> None:
        """Ends everything that runs, for a stop of the front."""
        with self._lock:
            running = list(self._running.values())
        deadline = time.monotonic() + wait_seconds
        for each in running:
            each.kill()
        for each in running:
            each.ended.wait(max(0.0, deadline - time.monotonic()))


def _array(values) -> str:
    # A `transform` of empty arrays is an error, so there is always one that fits nothing.
    return f"[{', '.join(map(sql.quote, ['', *values]))}]"


def _json_rows(data: bytes) -> list[list[str]]:
    return [json.loads(line) for line in data.decode("utf-8", "surrogateescape").splitlines()]
