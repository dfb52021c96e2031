"""Measures what a plugin on an export costs, beside the same export without one.

Every export reads the same rows and writes the same format, in turn, for several rounds. What counts
is the ratio of the medians to the one without a plugin.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import s3
from bench import BUCKET, MIB, ROOT, Case, Measured, run_ours
from clickhouse import ClickHouse
from data import load_events

NUM_ROWS = 1_000_000

# What each plugin does, its source, and which part of the rows it keeps.
PLUGINS = {
    "no plugin": (None, 1),
    "returns each row": ("export const processEvent = (event) => event", 1),
    "leaves out every second row": (
        "let kept = false; export const processEvent = (event) => (kept = !kept) ? event : null",
        0.5,
    ),
    "changes one column": (
        "export const processEvent = (event) => ({ ...event, event: event.event.toUpperCase() })",
        1,
    ),
}


def main() -> int:
    options = _options()
    table = "events_1m"
    load_events(ClickHouse.from_environment(), table, NUM_ROWS)
    s3.connect().create_dir(BUCKET, recursive=False)
    case = Case("Parquet", "zstd", table, NUM_ROWS)
    measured = {what: Measured() for what in PLUGINS}
    for number in range(options.rounds + 1):
        for what, (source, part) in PLUGINS.items():
            print(f"round {number} of {options.rounds}: {what}", file=sys.stderr, flush=True)
            run_ours(case, measured[what], number == 0, source, round(NUM_ROWS * part))
    bare = measured["no plugin"].median
    results = [_result(what, each, bare) for what, each in measured.items()]
    print("| what the plugin does | time | times the time without | rows/s | CPU | peak memory |")
    print("|---|---|---|---|---|---|")
    for each in results:
        print(
            f"| {each['plugin']} | {each['seconds']:.2f} s | {each['times_the_time']:.1f} "
            f"| {each['rows_per_second']:,} | {each['cpu_seconds']:.2f} s | {each['peak_mib']} MiB |"
        )
    options.json.write_text(json.dumps({"rounds": options.rounds, "plugins": results}, indent=2) + "\n")
    return 0


def _result(what: str, measured: Measured, bare: float) -> dict:
    return {
        "plugin": what,
        "seconds": round(measured.median, 3),
        "times_the_time": round(measured.median / bare, 2),
        "rows_per_second": round(NUM_ROWS / measured.median),
        "cpu_seconds": round(statistics.median(measured.cpu_seconds), 2),
        "peak_mib": round(max(measured.peak_bytes) / MIB),
        "all_seconds": [round(each, 3) for each in measured.seconds],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "bench-plugins.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
