"""A named set of services: its folder, ports, secrets and the file with its variables."""

import contextlib
import fcntl
import json
import os
import random
import secrets
import shlex
import socket
import string
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RUNS = ROOT / ".dev" / "run"
LOCK_SECONDS = 120.0
LOOPBACK = "127.0.0.1"

# Below the range from which the kernel takes ports for outgoing connections.
FREE_PORTS = range(20000, 32000)
FRIENDLY_PORTS = {"temporal": 7233, "temporal_ui": 8233, "clickhouse": 8123, "s3": 8333}
FRIENDLY_INSTANCE = "demo"

# The line of an env file behind which nothing is ours.
BROUGHT = "# Services of yours, used instead of ones of ours:"


class Instance:
    """Everything that belongs to `--name NAME`."""

    def __init__(self, name: str):
        if not name.replace("-", "").replace("_", "").isalnum():
            raise SystemExit(f"not a name for an instance: {name!r}")
        self.name = name
        self.folder = RUNS / name
        self.env_file = self.folder / "env"
        self._ports_file = self.folder / "ports.json"
        self._secrets_file = self.folder / "secrets.json"

    def port(self, service: str) -> int:
        """The port of a service, picked at first use and kept."""
        ports = self._read(self._ports_file)
        if service not in ports:
            ports[service] = self._pick_port(service, set(ports.values()))
            self._write(self._ports_file, ports)
        return ports[service]

    def renew_port_if_taken(self, service: str) -> None:
        """Gives a service that is about to start another port if somebody took its own."""
        if not _is_free(self.port(service)):
            ports = self._read(self._ports_file)
            del ports[service]
            self._write(self._ports_file, ports)

    def secret(self, name: str, length: int = 32) -> str:
        """A random password, made at first use and kept."""
        known = self._read(self._secrets_file)
        if name not in known:
            alphabet = string.ascii_letters + string.digits
            known[name] = "".join(secrets.choice(alphabet) for _ in range(length))
            self._write(self._secrets_file, known)
        return known[name]

    def read_env(self) -> dict[str, str]:
        """The variables of the last `up`."""
        return _parse_env(self.env_file)

    def write_env(self, own: dict[str, str], brought: dict[str, str]) -> None:
        """Writes the variables of our services and, apart from them, those of services that the user brings."""
        lines = [f"# Variables of the development services '{self.name}'. For: . {self.env_file.name}"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in own.items()]
        if brought:
            lines.append(BROUGHT)
            lines += [f"export {name}={shlex.quote(value)}" for name, value in brought.items()]
        write_private(self.env_file, "\n".join(lines) + "\n")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps two `up` or `down` of one instance apart."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise SystemExit(f"'{self.name}' is being started or stopped") from None
                    time.sleep(0.1)
            yield

    def _pick_port(self, service: str, taken: set[int]) -> int:
        friendly = FRIENDLY_PORTS.get(service)
        if self.name == FRIENDLY_INSTANCE and friendly and _is_free(friendly):
            return friendly
        # Other instances may be down just now, and shall find their ports again.
        for path in RUNS.glob("*/ports.json"):
            taken |= set(self._read(path).values())
        for _ in range(1000):
            port = random.choice(FREE_PORTS)  # noqa: S311
            if port not in taken and _is_free(port):
                return port
        raise SystemExit("no free port found")

    @staticmethod
    def _read(path: Path) -> dict:
        return json.loads(path.read_text()) if path.exists() else {}

    @staticmethod
    def _write(path: Path, content: dict) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, json.dumps(content, indent=2) + "\n")


def is_ours(variable: str, value: str) -> bool:
    """Whether a value comes from an instance's env file that the user has sourced."""
    return any(_parse_env(path, own_only=True).get(variable) == value for path in RUNS.glob("*/env"))


def _parse_env(path: Path, own_only: bool = False) -> dict[str, str]:
    if not path.exists():
        return {}
    pairs = {}
    for line in path.read_text().splitlines():
        if own_only and line == BROUGHT:
            break
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            pairs[name] = shlex.split(value)[0] if value else ""
    return pairs


def write_private(path: Path, text: str) -> None:
    """Writes whole or not at all, readable by the owner only."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
