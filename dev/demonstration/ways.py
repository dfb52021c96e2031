"""The ways to export: by hand, by a backfill, without Temporal, and when a schedule fires."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import data
from clickhouse import ClickHouse

from . import exports, temporal
from .exports import Export
from .failure import DemoError
from .program import EXAMPLES, Program
from .screen import Screen, megabytes

FLIGHTS = 336_776
EVENTS = data.DEFAULT_EVENTS
LIVE_EVENTS = 5_000
DAY = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = 24
# A part of the day: to compare JSON by its meaning takes ClickHouse far longer than to export it.
RUN_HOURS = 6
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

# The server may be somebody's own, and these are removed before a new demo.
BY_HAND = "demo-flights-by-hand"
HOURLY = "demo-events-hourly"
LIVE = "demo-events-live"
# Enough for the schedule to be there, and little enough to wait for it; the later ones are for slow
# machines. All are less than its minute.
FIRES_AFTER = [timedelta(seconds=each) for each in (8, 20, 45)]

# How long each way may take before the demo gives up. Unit: seconds.
BY_HAND_LIMIT = 120.0
BACKFILL_LIMIT = 240.0
LIVE_LIMIT = 60.0


class Ways:
    """Each method is one step on the screen and returns what was exported."""

    def __init__(self, program: Program, clickhouse: ClickHouse, screen: Screen):
        self._program = program
        self._clickhouse = clickhouse
        self._screen = screen
        # Runs of an earlier demo have the same ids.
        self._began = datetime.now(UTC)

    def create_live_schedule(self) -> datetime:
        """Lets events come in and a schedule fire soon; returns when it is due."""
        with self._screen.step("creating a schedule that exports every minute"):
            self._clickhouse.query("DROP TABLE IF EXISTS live_events")
            self._clickhouse.query("CREATE TABLE live_events AS events")
            for soon in FIRES_AFTER:
                self._insert_live_events()
                due = datetime.now(UTC).replace(microsecond=0) + soon
                interval = f"60s/{temporal.phase(due, 60)}s"
                temporal.create_schedule(LIVE, interval, _input("events-live"), paused=False)
                if datetime.now(UTC) < due:
                    break
                # Too slow: it would fire a minute later, when these events are in no window of it.
                temporal.delete_schedule(LIVE)
            else:
                raise DemoError("Temporal takes too long to create a schedule")
            self._screen.detail(f"{LIVE_EVENTS:,} events came in just now, due {due:%H:%M:%S} UTC")
        return due

    def _insert_live_events(self) -> None:
        """Events of the last seconds, in place of earlier ones."""
        now = f"{exports.moment(datetime.now(UTC))} - toIntervalMillisecond(_offset)"
        self._clickhouse.query("TRUNCATE TABLE live_events")
        self._clickhouse.query(
            "INSERT INTO live_events"
            f" SELECT * REPLACE ({now} AS inserted_at, {now} AS timestamp)"
            f" FROM events WHERE _offset < {LIVE_EVENTS}"
        )

    def by_hand(self) -> Export:
        with self._screen.step("all flights, by hand: temporal workflow start"):
            temporal.start(BY_HAND, _input("flights"))
            query = f"WorkflowId = '{BY_HAND}' AND {self._of_this_demo}"
            (run,) = self._wait(query, 1, BY_HAND_LIMIT)
            objects = exports.objects_of(temporal.result(run), exports.FLIGHTS)
            export = Export("by hand", "Parquet", FLIGHTS, temporal.seconds([run]), objects)
            self._screen.detail(_summary(export))
        return export

    def backfill(self) -> Export:
        """One run for each hour of the generated day, several at a time."""
        with self._screen.step("a day of events, hour by hour: temporal schedule backfill"):
            temporal.create_schedule(HOURLY, "1h", _input("events-hourly"), paused=True)
            # From half past to half past: whether bounds are included doesn't matter then.
            temporal.backfill(HOURLY, DAY + HOUR / 2, DAY + HOURS * HOUR + HOUR / 2)
            runs = self._wait(self._of_schedule(HOURLY), HOURS, BACKFILL_LIMIT)
            objects = []
            for run in runs:
                result = temporal.result(run)
                source = _source(exports.EVENTS, result, HOUR)
                objects += exports.objects_of(result, source)
            export = Export("backfill", "Parquet", EVENTS, temporal.seconds(runs), objects)
            self._screen.detail(_summary(export))
        return export

    def without_temporal(self) -> list[Export]:
        window = exports.window("inserted_at", DAY, DAY + RUN_HOURS * HOUR)
        events = exports.EVENTS.format(window=window)
        bounds = (temporal.rfc3339(DAY), temporal.rfc3339(DAY + RUN_HOURS * HOUR))
        return [
            self._run("events", "JSONLines", EVENTS * RUN_HOURS // HOURS, bounds, events),
            # Midnight of New York, as the file's time zone says.
            self._run("flights", "Parquet", FLIGHTS, ("2013-01-01", "2014-01-01"), exports.FLIGHTS_OF_2013),
        ]

    def live(self, due: datetime) -> Export:
        with self._screen.step(f"new events, when the schedule fires at {due:%H:%M:%S} UTC"):
            left = max((due - datetime.now(UTC)).total_seconds(), 0)
            runs = self._wait(self._of_schedule(LIVE), 1, left + LIVE_LIMIT)
            temporal.pause(LIVE, "the demo has seen it fire")
            run = min(runs, key=lambda run: run.started)
            result = temporal.result(run)
            objects = exports.objects_of(result, _source(exports.LIVE_EVENTS, result, MINUTE))
            seconds = temporal.seconds([run])
            export = Export("schedule", "JSONLines", LIVE_EVENTS, seconds, objects)
            self._screen.detail(_summary(export))
        return export

    def _run(self, name: str, file_format: str, rows: int, bounds: tuple[str, str], source: str) -> Export:
        with self._screen.step(f"without Temporal: batch-export run {name}.yaml"):
            result = self._program.run(f"{name}.yaml", *bounds, self._screen)
            objects = exports.objects_of(result, source)
            export = Export(f"run of {name}.yaml", file_format, rows, result["duration_seconds"], objects)
            self._screen.detail(_summary(export))
        return export

    def _wait(self, query: str, count: int, seconds: float) -> list[temporal.Execution]:
        """Waits for runs; a failure shows what the worker says."""
        worker = self._program.worker

        def show(completed: int) -> None:
            if worker.pid() is None:
                raise DemoError("the worker ended")
            if count > 1:
                self._screen.detail(f"{completed} of {count} runs completed")

        try:
            return temporal.wait_for(query, count, seconds, show)
        except DemoError as error:
            raise DemoError(str(error), worker.log) from None

    def _of_schedule(self, name: str) -> str:
        return f"TemporalScheduledById = '{name}' AND {self._of_this_demo}"

    @property
    def _of_this_demo(self) -> str:
        return f"StartTime >= '{temporal.rfc3339(self._began)}'"


def _source(select: str, result: dict, length: timedelta) -> str:
    """The query of a run's interval, whose length is not taken from the program."""
    end = temporal.instant(result["data_interval_end"])
    return select.format(window=exports.window("inserted_at", end - length, end))


def _input(name: str) -> Path:
    return EXAMPLES / "temporal" / f"{name}.json"


def _summary(export: Export) -> str:
    return f"{export.rows:,} rows, {megabytes(export.bytes)}"
