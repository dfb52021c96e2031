"""Starts programs that outlive the starting shell, and ends exactly those."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX_SECONDS = 5.0
STOP_SECONDS = 10.0
KILL_SECONDS = 5.0
LOG_TAIL_LINES = 25
# What Linux keeps of a program's name.
NAME_LENGTH = 15


@dataclass(frozen=True)
class Command:
    """How a program is started."""

    argv: list[str]
    environment: dict[str, str]
    folder: Path
    # A program that becomes that of `argv`, such as setpriv.
    prefix: tuple[str, ...] = ()


class Daemon:
    """One detached program with its pid file and its log."""

    def __init__(self, name: str, run_folder: Path):
        self.name = name
        self._pid_file = run_folder / "pids" / f"{name}.json"
        self.log = run_folder / "logs" / f"{name}.log"

    def pid(self) -> int | None:
        """The pid, if the process is still the one that we started: pids are used again."""
        try:
            record = json.loads(self._pid_file.read_text())
        except (OSError, ValueError):
            return None
        path = record["argv"][0]
        known = [(record["started"], each) for each in (os.path.realpath(path), Path(path).name[:NAME_LENGTH])]
        return record["pid"] if _identity(record["pid"]) in known else None

    def start(self, command: Command) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        command.folder.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [*command.prefix, *command.argv],
                cwd=command.folder,
                env=_base_environment() | command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        identity = _identity(process.pid)
        started = identity[0] if identity else None
        record = {"pid": process.pid, "started": started, "argv": command.argv}
        self._pid_file.write_text(json.dumps(record))
        # Before that it would not be known again.
        deadline = time.monotonic() + PREFIX_SECONDS
        while command.prefix and self.pid() is None and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        # It shall live on when this program ends, so there is nobody to wait for it.
        process.returncode = 0

    def stop(self, gently: signal.Signals = signal.SIGTERM) -> bool:
        """Ends the program. Returns whether it ran."""
        pid = self.pid()
        if pid is None:
            self._pid_file.unlink(missing_ok=True)
            return False
        for number, seconds in ((gently, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            os.kill(pid, number)
            if self._wait_gone(seconds):
                self._pid_file.unlink(missing_ok=True)
                return True
        raise RuntimeError(f"{self.name} (pid {pid}) does not end")

    def log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _wait_gone(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _identity(pid: int) -> tuple[str, str] | None:
    """What tells a process from a later one with the same pid: start time and program.

    The command line is no help: some programs rewrite theirs. In a container even root may not see
    the path of another user's program, so there its name has to do.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The second field is the name in brackets and may hold blanks.
        beginning, _, end = stat.rpartition(")")
        program = _program(pid) or beginning.partition("(")[2]
    except OSError:
        return None
    state, *fields = end.split()
    return None if state in "ZX" else (fields[18], program)


def _program(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
    except PermissionError:
        return None


def _base_environment() -> dict[str, str]:
    """What a service may see of ours: no credentials of other things, no proxies."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "LOGNAME", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ}
