"""Writes docs/reliability.md of what the rigs left in a folder: see `make chaos`."""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

INTRODUCTION = """\
# What was broken, and what held

`make chaos` breaks everything that a run depends on and writes this page. Each figure is *tried / survived*: survived
means that the object is there whole and once, or not at all with an error that says why, that no upload and no query
is left, and that the reported counts are true. A miss stands here as a miss.

What each rig does is in `tests/it`: `kill_points.rs`, `sink_faults.rs`, `source_faults.rs`, `chaos.rs`,
`job_chaos.rs`, `memory.rs`; the targets for broken inputs are in `engine/src/fuzz.rs`. All but the long chaos run with
every `make test`, for a shorter time.
"""

LIMITS = """\
## What is left to luck

- A worker that is killed in the moment between S3's answer to opening an upload and the next heartbeat leaves an
  upload that nobody knows, and so does a reply to opening one that gets lost. A [job](jobs.md) looks for them a minute
  after the run's end. Where the credentials may not list uploads it can't: give the bucket a lifecycle rule then.
- On stores that ignore conditions ([which do](stores.md)), a late attempt that writes a small object by one PUT can
  replace its successor's, with the same window's rows. An upload in parts can't: the successor aborts it first.
- What earlier attempts have read is in one host's record of runs and in the last heartbeat that Temporal kept. Where
  both are lost, fewer rows than before can't be seen.
- A row that was never in ClickHouse's answer is not missed by anybody: the stream's ends and the counts of rows are
  what is checked.
"""


# Those that the page can't do without.
RIGS = ("chaos", "job-chaos First", "job-chaos Everything", "fuzz-arrow-reader", "fuzz-configuration")


def main() -> int:
    """Reads the folder and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    figures = {path.stem: json.loads(path.read_text()) for path in sorted(options.folder.glob("*.json"))}
    missing = [rig for rig in RIGS if rig not in figures]
    if missing:
        print(f"reliability: {', '.join(missing)} left no figures; look at the tests' output", file=sys.stderr)
        return 1
    (ROOT / "docs" / "reliability.md").write_text(page(figures))
    print("docs/reliability.md is written")
    return 0


def page(figures: dict[str, dict]) -> str:
    """The page, of the figures by rig."""
    chaos = figures["chaos"]
    sections = [
        INTRODUCTION,
        _table("Points at which a worker was killed, stopped or cut off", _scores(figures, "kill-points ")),
        _table("Faults of S3, on both stores", _scores(figures, "s3 ")),
        _table("Faults of ClickHouse's stream", _scores(figures, "clickhouse faults ")),
        "## Chaos\n\n"
        f"{chaos['runs']:,} runs in {chaos['attempts']:,} attempts, {chaos['rows']:,} rows compared with their source:"
        f" 0 lost, 0 twice; {chaos['uploads']} uploads left over.\n\n| what broke, at random | times |\n|---|---|\n"
        + "".join(f"| {name} | {times} |\n" for name, times in sorted(chaos["faults"].items())),
        _jobs(figures["job-chaos First"], figures["job-chaos Everything"]),
        "## Broken inputs\n\n| target | inputs | panics |\n|---|---|---|\n"
        + "".join(
            f"| {name.removeprefix('fuzz-')} | {found['inputs']:,} | {found['panics']} |\n"
            for name, found in figures.items()
            if name.startswith("fuzz-")
        ),
        "## Memory\n\nThe most that a run's process held besides its program, against its `memory_limit`.\n\n"
        "| case | output | peak | limit |\n|---|---|---|---|\n"
        + "".join(
            f"| {found['what']} | {found['output']} | {found['peak_mib']} MiB | {found['limit_mib']} MiB |\n"
            for name, found in figures.items()
            if name.startswith("memory ")
        ),
        LIMITS,
        f"Measured on a machine with {os.cpu_count()} cores that also ran the services.\n",
    ]
    return "\n".join(sections)


def _jobs(*rounds: dict[str, int]) -> str:
    found: Counter[str] = Counter()
    for figures in rounds:
        found.update(figures)
    kinds = sorted((name, times) for name, times in found.items() if name not in ("jobs", "serial", "twice"))
    return (
        f"## Chaos around jobs\n\n{found['jobs']:,} jobs accepted by a provider on a disk: 0 lost,"
        f" {found['twice']} calls of a webhook more than once, {found['serial']:,} of a serial queue"
        " whose own place alone broke: all in their order. A job that no fault met ran once; one that ran again had met"
        " a fault for each call after the first.\n\n"
        "Services are real, and are really stopped and renamed. Simulated are the network (by a relay in front of each"
        " service), a service that is full or doesn't know its bucket (as the table says), and clocks (by a library"
        " that is loaded first). Outages come in a random order, each of them before any comes again.\n\n"
        "| what happened | times |\n|---|---|\n" + "".join(f"| {name} | {times} |\n" for name, times in kinds)
    )


def _scores(figures: dict[str, dict], prefix: str) -> dict[str, list[int]]:
    scores: dict[str, list[int]] = {}
    for name, kinds in figures.items():
        if name.startswith(prefix):
            for kind, (tried, survived) in kinds.items():
                before = scores.get(kind, [0, 0])
                scores[kind] = [before[0] + tried, before[1] + survived]
    return scores


def _table(title: str, scores: dict[str, list[int]]) -> str:
    tried, survived = (sum(score[index] for score in scores.values()) for index in (0, 1))
    rows = "".join(f"| {kind} | {score[0]} / {score[1]} |\n" for kind, score in sorted(scores.items()))
    return f"## {title}\n\n| what | tried / survived |\n|---|---|\n{rows}| **all** | **{tried} / {survived}** |\n"


if __name__ == "__main__":
    sys.exit(main())
