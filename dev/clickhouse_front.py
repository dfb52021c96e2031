"""Starts the HTTP front for chDB: `python dev/clickhouse_front.py --path DIR --port 8123`.

The password comes from the environment variable CLICKHOUSE_PASSWORD, so that it is not seen in
the list of processes.
"""

import argparse
import os
import signal
import sys
import threading

from front.engine import Engine
from front.errors import EXCEPTION_FORMS, FORM_TAGGED
from front.request import Accounts
from front.server import Front, FrontServer

STOP_SECONDS = 3.0


def main() -> None:
    options = _options()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    engine = Engine(options.path)
    accounts = Accounts(options.user, os.environ.get("CLICKHOUSE_PASSWORD", ""))
    front = Front(engine, accounts, options.exception_form)
    server = FrontServer((options.host, options.port), front)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("listening on", *server.server_address[:2], file=sys.stderr, flush=True)
    stop.wait()
    server.shutdown()
    engine.kill_all(STOP_SECONDS)
    # The engine's own threads outlive the interpreter's end, so leave without it.
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--path", required=True, help="folder of the database")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--user", default="default")
    parser.add_argument(
        "--exception-form",
        choices=EXCEPTION_FORMS,
        default=FORM_TAGGED,
        help="how a failure after the first byte is written; a request can ask for another one"
        " with the header X-Front-Exception-Form",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
