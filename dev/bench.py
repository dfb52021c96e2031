"""Measures this program against ClickHouse's own export, side by side.

Both copy the same query's rows from the same server to the same S3 service in the same format and
codec, in turn, for several rounds. What counts is the ratio of the medians: a slower or faster
machine changes both sides alike.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import s3
from clickhouse import ClickHouse
from data import load_events

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target" / "release" / "batch-export"
BUCKET = "bench"
RUN_TIMEOUT_SECONDS = 600
MIB = 1 << 20

COLUMNS = """
    toString(uuid) AS uuid, timestamp, inserted_at, created_at, event, properties, distinct_id,
    elements_chain, person_properties, toString(person_id) AS person_id
"""
WINDOW = "inserted_at >= {interval_start} AND inserted_at < {interval_end}"
START, END = "2026-01-01 00:00:00.000000", "2026-01-02 00:00:00.000000"

EXPORT = """\
version: 1
name: {name}
interval: day
source:
  model: sql
  query: >-
    SELECT {columns} FROM {table} WHERE {window}
destination:
  bucket: {bucket}
  prefix: ours
  file_format: {format}
  compression: {codec}
"""

JOBS = """\
version: 1
folder: {folder}/jobs
providers: [{{type: files}}]
plugins: [{{name: measured, file: plugin.js}}]
"""


@dataclass(frozen=True)
class Case:
    """One row of the result: a format, its codec and a table."""

    format: str
    codec: str
    table: str
    num_rows: int

    @property
    def name(self) -> str:
        return f"{self.format}+{self.codec} {self.num_rows // 1_000_000} M".lower().replace(" ", "-").replace("+", "-")


@dataclass
class Measured:
    """What one side did in all rounds."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    num_bytes: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def main() -> int:
    options = _options()
    clickhouse = ClickHouse.from_environment()
    store = s3.connect()
    store.create_dir(BUCKET, recursive=False)
    cases = _cases(clickhouse, options)
    results = []
    for case in cases:
        ours, theirs = Measured(), Measured()
        for number in range(options.rounds + 1):
            warm_up = number == 0
            _note(f"{case.name}: {'warm-up' if warm_up else f'round {number} of {options.rounds}'}")
            run_ours(case, ours, warm_up)
            run_clickhouse(clickhouse, case, theirs, warm_up)
        sizes = {key: size for size, key in s3.objects(store, BUCKET)}
        ours.num_bytes = max(size for key, size in sizes.items() if f"/{case.name}/" in key)
        theirs.num_bytes = sizes[f"{BUCKET}/theirs/{case.name}"]
        results.append(_result(case, ours, theirs))
    _print_table(results)
    _print_memory(results)
    options.json.write_text(json.dumps({"rounds": options.rounds, "cases": results}, indent=2) + "\n")
    _note(f"written as JSON: {options.json}")
    return 0


def run_ours(
    case: Case,
    measured: Measured,
    warm_up: bool,
    plugin: str | None = None,
    kept_rows: int | None = None,
) -> None:
    """Runs the program as a user would, and takes the kernel's account of it.

    With a plugin's source, the rows go through it, and `kept_rows` are to be left of them.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "export.yaml"
        config.write_text(
            EXPORT.format(
                name=case.name,
                columns=" ".join(COLUMNS.split()),
                window=WINDOW,
                table=case.table,
                bucket=BUCKET,
                format=case.format,
                codec=case.codec,
            )
        )
        command = [
            PROGRAM,
            "run",
            config,
            "--interval-end",
            "2026-01-02",
            "-o",
            "json",
            "--log",
            "warn",
        ]
        if plugin is not None:
            (Path(folder) / "plugin.js").write_text(plugin)
            jobs = Path(folder) / "jobs.yaml"
            jobs.write_text(JOBS.format(folder=folder))
            config.write_text(config.read_text() + "plugin: {name: measured}\n")
            command += ["--jobs", jobs]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    report = json.loads(output)
    if process.returncode != 0 or report["run"]["rows"] != (kept_rows or case.num_rows):
        raise SystemExit(f"{case.name}: the run failed: {output.decode()}")
    if not warm_up:
        measured.seconds.append(seconds)
        measured.cpu_seconds.append(usage.ru_utime + usage.ru_stime)
        measured.peak_bytes.append(usage.ru_maxrss * 1024)


def run_clickhouse(clickhouse: ClickHouse, case: Case, measured: Measured, warm_up: bool) -> None:
    """Lets ClickHouse write the object itself."""
    formats = {"Parquet": "Parquet", "JSONLines": "JSONEachRow"}
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    window = WINDOW.format(
        interval_start=f"toDateTime64('{START}', 6, 'UTC')",
        interval_end=f"toDateTime64('{END}', 6, 'UTC')",
    )
    target = ", ".join(
        f"'{part}'"
        for part in (
            f"{endpoint}/{BUCKET}/theirs/{case.name}",
            os.environ["AWS_ACCESS_KEY_ID"],
            os.environ["AWS_SECRET_ACCESS_KEY"],
            formats[case.format],
            "auto",
            "gzip" if case.codec == "gzip" else "none",
        )
    )
    began = time.monotonic()
    clickhouse.query(
        f"INSERT INTO FUNCTION s3({target}) SELECT {COLUMNS} FROM {case.table} WHERE {window}",
        s3_truncate_on_insert=1,
        output_format_parquet_compression_method="zstd",
    )
    if not warm_up:
        measured.seconds.append(time.monotonic() - began)


def _cases(clickhouse: ClickHouse, options: argparse.Namespace) -> list[Case]:
    cases = []
    for millions in options.millions:
        table, num_rows = f"events_{millions}m", millions * 1_000_000
        load_events(clickhouse, table, num_rows)
        cases += [
            Case("Parquet", "zstd", table, num_rows),
            Case("JSONLines", "gzip", table, num_rows),
        ]
    return [case for case in cases if options.only in case.name]


def _result(case: Case, ours: Measured, theirs: Measured) -> dict:
    return {
        "case": f"{case.format}+{case.codec}",
        "rows": case.num_rows,
        "ours_seconds": round(ours.median, 3),
        "clickhouse_seconds": round(theirs.median, 3),
        "times_as_fast": round(theirs.median / ours.median, 3),
        "rows_per_second": round(case.num_rows / ours.median),
        "mb_per_second_written": round(ours.num_bytes / 1e6 / ours.median, 1),
        "cpu_seconds": round(statistics.median(ours.cpu_seconds), 2),
        "peak_mib": round(max(ours.peak_bytes) / MIB),
        "ours_bytes": ours.num_bytes,
        "clickhouse_bytes": theirs.num_bytes,
        "size_ratio": round(ours.num_bytes / theirs.num_bytes, 3),
        "ours_all_seconds": [round(each, 3) for each in ours.seconds],
        "clickhouse_all_seconds": [round(each, 3) for each in theirs.seconds],
    }


def _print_table(results: list[dict]) -> None:
    print("| what | rows | ours | ClickHouse | times as fast | rows/s | MB/s written | CPU | peak memory | size |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for each in results:
        print(
            f"| {each['case']} | {each['rows'] // 1_000_000} M | {each['ours_seconds']:.2f} s "
            f"| {each['clickhouse_seconds']:.2f} s | {each['times_as_fast']:.2f} "
            f"| {each['rows_per_second']:,} | {each['mb_per_second_written']} | {each['cpu_seconds']:.2f} s "
            f"| {each['peak_mib']} MiB | {each['size_ratio']:.2f} of ClickHouse's |"
        )


def _print_memory(results: list[dict]) -> None:
    """How the peak memory of a larger export compares with the smallest one's."""
    for each in results:
        smallest = min((other for other in results if other["case"] == each["case"]), key=lambda other: other["rows"])
        if each is not smallest:
            ratio = each["peak_mib"] / smallest["peak_mib"]
            millions = (each["rows"] // 1_000_000, smallest["rows"] // 1_000_000)
            print(f"{each['case']}: peak memory at {millions[0]} M is {ratio:.2f} of that at {millions[1]} M")


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 4], help="sizes of the tables")
    parser.add_argument("--only", default="", help="cases whose name holds this, such as parquet")
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "bench.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
