"""What the demo exports, and how each object is compared with its source.

The source's SQL is written here a second time, apart from the program's own and from the files in
`examples/`: a mistake in those must not hide itself.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime

from pyarrow.fs import S3FileSystem

import s3
import verify
from clickhouse import ClickHouse

from .failure import DemoError
from .screen import megabytes

BUCKET = "batch-export-demo"
PREFIXES = ("by-hand", "backfill", "schedule", "run")
VERIFIERS = 2

FLIGHTS = "SELECT * FROM flights"
FLIGHTS_OF_2013 = """
    SELECT sched_dep, carrier, flight, tailnum, origin, dest, dep_delay, arr_delay, air_time,
        distance
    FROM flights
    WHERE toYear(sched_dep, 'America/New_York') = 2013
"""
EVENTS = """
    SELECT uuid, timestamp, inserted_at AS _inserted_at, created_at, event,
        nullIf(properties, '') AS properties, distinct_id, elements_chain,
        nullIf(person_properties, '') AS person_properties, person_id
    FROM events
    WHERE {window}
"""
LIVE_EVENTS = """
    SELECT uuid, event, distinct_id, timestamp, inserted_at, properties
    FROM live_events
    WHERE {window}
"""


@dataclass(frozen=True)
class Object:
    """One object that was written, and the query whose rows it must hold."""

    key: str
    rows: int
    bytes: int
    source_sql: str


@dataclass
class Export:
    """One line of the table: the objects of one export."""

    title: str
    format: str
    expected_rows: int
    seconds: float
    objects: list[Object]
    faults: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.objects)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.objects)

    @property
    def name(self) -> str:
        """The object's key, or the folder of several."""
        keys = [each.key for each in self.objects]
        if len(keys) == 1:
            return keys[0]
        return f"{keys[0].rpartition('/')[0]}/ ({len(keys)} objects)" if keys else "nothing"


def window(column: str, start: datetime, end: datetime) -> str:
    """The condition of one interval."""
    return f"{column} >= {moment(start)} AND {column} < {moment(end)}"


def moment(time: datetime) -> str:
    """An instant in SQL, to the microsecond."""
    # Not through a float of seconds, which is too coarse.
    micros = int(time.timestamp()) * 1_000_000 + time.microsecond
    return f"fromUnixTimestamp64Micro({micros}, 'UTC')"


def objects_of(result: dict, source_sql: str) -> list[Object]:
    """The objects that a run says it has written."""
    elsewhere = [each["bucket"] for each in result["files"] if each["bucket"] != BUCKET]
    if elsewhere:
        raise DemoError(f"an object lies in the bucket {elsewhere[0]}")
    return [Object(each["key"], each["rows"], each["bytes"], source_sql) for each in result["files"]]


def verify_all(
    clickhouse: ClickHouse, endpoint: str | None, exports: list[Export], show: Callable[[str], None]
) -> None:
    """Reads every object back and notes what is wrong."""
    work = [(export, each) for export in exports for each in export.objects]
    with ThreadPoolExecutor(VERIFIERS) as pool:
        reports = pool.map(lambda pair: _faults(clickhouse, endpoint, *pair), work)
        for number, ((export, _), faults) in enumerate(zip(work, reports, strict=True), 1):
            export.faults += faults
            show(f"{number} of {len(work)} objects read back")
    for export in exports:
        if export.rows != export.expected_rows:
            export.faults.append(f"{export.title}: {export.rows} rows, not {export.expected_rows}")


def listing(store: S3FileSystem) -> dict[str, int]:
    """Sizes of the objects that demos have written, by key."""
    found = [each for prefix in PREFIXES for each in s3.objects(store, f"{BUCKET}/{prefix}/")]
    return {key.removeprefix(f"{BUCKET}/"): size for size, key in found}


def check_listing(exports: list[Export], listed: dict[str, int]) -> list[str]:
    """Compares what the runs say with what the bucket holds."""
    said = {each.key: each.bytes for export in exports for each in export.objects}
    faults = [f"{key} is in the bucket, and no run wrote it" for key in sorted(listed.keys() - said)]
    faults += [f"{key} is not in the bucket" for key in sorted(said.keys() - listed)]
    faults += [
        f"{key} has {listed[key]} bytes, not {said[key]}"
        for key in sorted(said.keys() & listed)
        if listed[key] != said[key]
    ]
    return faults


def row(export: Export, width: int | None = None) -> list[str]:
    """The line of the table; a `width` shortens the object's name."""
    rate = f"{export.bytes / export.seconds / 1e6:.1f}" if export.seconds else "-"
    name = shortened(export.name, width) if width else export.name
    verdict = "NO" if export.faults else "yes"
    return [name, f"{export.rows:,}", megabytes(export.bytes), rate, verdict]


def shortened(text: str, width: int) -> str:
    """Leaves out the middle: the start says which export, the end which file."""
    if len(text) <= width:
        return text
    tail = width // 2
    return f"{text[: width - tail - 1]}…{text[-tail:] if tail else ''}"


def _faults(clickhouse: ClickHouse, endpoint: str | None, export: Export, each: Object) -> list[str]:
    place = f"s3://{BUCKET}/{each.key}"
    objects = verify.Objects([place], export.format, "auto", endpoint)
    try:
        report = verify.compare(clickhouse, each.source_sql, objects)
    except (verify.ClickHouseError, OSError) as error:
        return [f"{place} can't be read: {error}"]
    return faults_of(place, report, each.rows)


def faults_of(place: str, report: dict, said_rows: int) -> list[str]:
    """What a comparison has found, in sentences."""
    faults = [f"{place}: {fault}" for fault in report["faults"]]
    rows = report.get("rows", {"source": said_rows, "object": said_rows})
    if rows["source"] != rows["object"]:
        faults.append(f"{place}: {rows['object']} rows, {rows['source']} in the source")
    elif rows["object"] != said_rows:
        faults.append(f"{place}: {rows['object']} rows, but the run says {said_rows}")
    else:
        columns = report.get("columns", [])
        different = [column["name"] for column in columns if not column["equal"]]
        if different:
            which = "every column" if len(different) == len(columns) else ", ".join(different)
            faults.append(f"{place}: different values in {which}")
    if not report["equal"] and not faults:
        faults.append(f"{place}: values are mixed up between rows")
    return faults
