"""Starts and stops the development services.

`python dev/services.py up [--name demo]` starts Temporal, ClickHouse, an S3 store, a second S3
store with MinIO's request handlers and PostgreSQL, all on loopback, and writes their variables to
`.dev/run/NAME/env`. A service whose address is set in the environment already (CLICKHOUSE_URL,
AWS_ENDPOINT_URL_S3, TEMPORAL_ADDRESS, BATCH_EXPORT_TEST_POSTGRES_URL) is not started; its variables
are passed through.
"""

import argparse
import os
import re
import shlex
import shutil
import sys
import time

from stack.definitions import SERVICES, Service
from stack.instance import FRIENDLY_INSTANCE, Instance, is_ours
from stack.process import Daemon

READY_SECONDS = 60.0


def main() -> int:
    options = _options()
    instance = Instance(options.name)
    services = [each for each in SERVICES if not options.only or each.name in options.only]
    if options.action == "up":
        return up(instance, services)
    if options.action == "down":
        return down(instance, services, options.delete)
    if options.action == "status":
        return status(instance, services)
    return show_env(instance)


def up(instance: Instance, services: list[Service]) -> int:
    """Starts what does not run and waits until all is ready."""
    with instance.locked():
        own = [each for each in services if not _is_external(each)]
        started = [each for each in own if _start(instance, each)]
        for service in own:
            _wait_ready(instance, service)
        instance.write_env(*_variables(instance))
    _say(f"services '{instance.name}' are up ({len(started)} started, {len(own)} running)")
    _say(f"variables: . {shlex.quote(os.path.relpath(instance.env_file))}")
    return 0


def down(instance: Instance, services: list[Service], delete: bool) -> int:
    """Ends what runs; data stays unless it is to be deleted."""
    if not instance.folder.exists():
        _say(f"there is no '{instance.name}'")
        return 0
    with instance.locked():
        for service in reversed(services):
            if Daemon(service.name, instance.folder).stop(service.stop_signal):
                _say(f"{service.name}: stopped")
                for path in service.leftovers(instance):
                    path.unlink(missing_ok=True)
        if delete:
            shutil.rmtree(instance.folder)
            _say(f"deleted {instance.folder}")
    return 0


def status(instance: Instance, services: list[Service]) -> int:
    """Prints one line for each service. Fails unless all of ours are ready."""
    all_ready = True
    for service in services:
        daemon = Daemon(service.name, instance.folder)
        if _is_external(service):
            state = f"yours, at {_without_password(os.environ[service.address_variable])}"
        elif daemon.pid() is None:
            state, all_ready = "stopped", False
        elif not service.is_ready(instance):
            state, all_ready = f"running but not ready, see {daemon.log}", False
        else:
            address = service.variables(instance)[service.address_variable]
            state = f"ready at {_without_password(address)} (pid {daemon.pid()})"
        print(f"{service.name:<12} {state}")
    return 0 if all_ready else 1


def show_env(instance: Instance) -> int:
    """Prints the variables in a form that a shell can evaluate."""
    if not instance.env_file.exists():
        _say(f"'{instance.name}' was never started")
        return 1
    sys.stdout.write(instance.env_file.read_text())
    return 0


def _start(instance: Instance, service: Service) -> bool:
    daemon = Daemon(service.name, instance.folder)
    if daemon.pid() is not None:
        return False
    for port in service.ports:
        instance.renew_port_if_taken(port)
    _say(f"{service.name}: starting")
    daemon.start(service.command(instance))
    return True


def _wait_ready(instance: Instance, service: Service) -> None:
    daemon = Daemon(service.name, instance.folder)
    deadline = time.monotonic() + READY_SECONDS
    while not service.is_ready(instance):
        is_running = daemon.pid() is not None
        if is_running and time.monotonic() < deadline:
            time.sleep(0.1)
            continue
        what = f"is not ready after {READY_SECONDS:.0f} s" if is_running else "ended"
        raise SystemExit(f"{service.name} {what}; {daemon.log} ends with:\n{daemon.log_tail()}")


def _variables(instance: Instance) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of our services, and those of services that the user brings."""
    own, brought = {"BATCH_EXPORT_PYTHON": sys.executable}, {}
    for service in SERVICES:
        if _is_external(service):
            names = (service.address_variable, *service.passed_through)
            brought |= {name: os.environ[name] for name in names if name in os.environ}
        else:
            own |= service.variables(instance)
    return own, brought


def _is_external(service: Service) -> bool:
    """Whether the user brings this service. A sourced env file of ours doesn't count."""
    address = os.environ.get(service.address_variable)
    return bool(address) and not is_ours(service.address_variable, address)


def _without_password(address: str) -> str:
    return re.sub("//[^/]*@", "//", address)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("up", "down", "status", "env"))
    parser.add_argument("--name", default=FRIENDLY_INSTANCE, help="which set of services")
    parser.add_argument(
        "--only",
        action="append",
        choices=[each.name for each in SERVICES],
        help="only this service (repeatable)",
    )
    parser.add_argument("--delete", action="store_true", help="with down: delete the data, too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
