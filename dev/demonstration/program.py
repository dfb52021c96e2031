"""Runs the program under demonstration: as a detached worker, and once by hand."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from stack.instance import ROOT, Instance
from stack.process import Command, Daemon

from .failure import DemoError
from .screen import Screen
from .temporal import TASK_QUEUE

EXAMPLES = ROOT / "examples"
CONNECTIONS = EXAMPLES / "connections.yaml"
READY_SECONDS = 30.0
RUN_SECONDS = 300


class Program:
    """The built program, with its files in the folder of an instance."""

    def __init__(self, binary: Path, instance: Instance):
        # Programs are started in other folders.
        self._binary = binary.absolute()
        self._instance = instance
        self._runs = instance.folder / "runs.db"
        self.worker = Daemon("worker", instance.folder)

    def check(self) -> None:
        if not self._binary.exists():
            raise DemoError(f"there is no {self._binary}; build it: cargo build --release")

    def start_worker(self) -> str:
        """Starts the worker, in place of one that runs already: that may be an older build."""
        self.worker.stop()
        self._instance.renew_port_if_taken("worker_status")
        address = f"127.0.0.1:{self._instance.port('worker_status')}"
        argv = [
            str(self._binary),
            "worker",
            f"--connections={CONNECTIONS}",
            f"--task-queue={TASK_QUEUE}",
            f"--status-address={address}",
            f"--runs={self._runs}",
            "--log-format=text",
        ]
        # Addresses and keys come by environment: command lines are there for everybody to see.
        environment = dict(os.environ)
        self.worker.start(Command(argv, environment, self._instance.folder))
        self._wait_ready(f"http://{address}/healthz")
        return address

    def run(self, export: str, start: str, end: str, screen: Screen) -> dict:
        """Runs one interval without Temporal, and returns what it says it has done."""
        name = Path(export).stem
        summary = self._instance.folder / f"{name}-summary.json"
        log = self._instance.folder / "logs" / f"run-{name}.log"
        summary.unlink(missing_ok=True)
        argv = [
            *(str(self._binary), "run", str(EXAMPLES / export)),
            *("--interval-start", start, "--interval-end", end),
            *("--summary-file", str(summary), "--runs", str(self._runs)),
            *("--time-limit", f"{RUN_SECONDS}s"),
        ]
        if screen.is_live:
            # It draws its own progress there.
            with screen.hidden():
                code = _run([*argv, "--log", "warn"], None)
        else:
            with log.open("wb") as file:
                code = _run([*argv, "--log-format", "text"], file)
        if code:
            raise DemoError(f"batch-export run {export} ended with {code}", None if screen.is_live else log)
        return json.loads(summary.read_text())["run"]

    def _wait_ready(self, url: str) -> None:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                with opener.open(url, timeout=2.0) as answer:
                    if answer.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            if self.worker.pid() is None:
                raise DemoError("the worker ended", self.worker.log)
            if time.monotonic() > deadline:
                raise DemoError(f"the worker is not ready after {READY_SECONDS:.0f} s", self.worker.log)
            time.sleep(0.1)


def find_binary() -> Path:
    """The release build, wherever Cargo puts it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return ROOT / target / "release" / "batch-export"


def _run(argv: list[str], log) -> int:
    try:
        # The time limit is the program's own; this one is for a program that ignores it.
        return subprocess.run(
            argv, check=False, stdout=subprocess.DEVNULL, stderr=log, timeout=RUN_SECONDS + 60
        ).returncode
    except subprocess.TimeoutExpired:
        raise DemoError("batch-export run does not end") from None
