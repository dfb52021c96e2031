"""A small ClickHouse client for the tools of this folder: HTTP, standard library only."""

import base64
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

TIMEOUT_SECONDS = 600.0


class ClickHouseError(Exception):
    """What the server answered instead of a result."""


@dataclass(frozen=True)
class ClickHouse:
    """A server and how to log in."""

    url: str
    user: str
    password: str
    database: str
    ca_file: str | None = None

    @classmethod
    def from_environment(cls) -> "ClickHouse":
        """Takes CLICKHOUSE_URL, _USER, _PASSWORD and _DATABASE."""
        if "CLICKHOUSE_URL" not in os.environ:
            raise SystemExit("CLICKHOUSE_URL is not set; try: . .dev/run/demo/env")
        return cls(
            url=os.environ["CLICKHOUSE_URL"].rstrip("/"),
            user=os.environ.get("CLICKHOUSE_USER", "default"),
            password=os.environ.get("CLICKHOUSE_PASSWORD", ""),
            database=os.environ.get("CLICKHOUSE_DATABASE", "default"),
        )

    def query(self, text: str, data: bytes | None = None, **settings: object) -> bytes:
        """Runs a query. With `data` it is an INSERT, and the data are its rows."""
        arguments = {"database": self.database} | {k: str(v) for k, v in settings.items()}
        if data is not None:
            arguments["query"] = text
        credentials = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            f"{self.url}/?{urllib.parse.urlencode(arguments)}",
            data=text.encode() if data is None else data,
            headers={
                "Authorization": f"Basic {credentials}",
                "Content-Type": "application/octet-stream",
            },
        )
        context = ssl.create_default_context(cafile=self.ca_file)
        # Whoever names a server means it, not a proxy on the way.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=TIMEOUT_SECONDS) as response:
                return response.read()
        except urllib.error.HTTPError as error:
            raise ClickHouseError(error.read().decode(errors="replace").strip()) from None

    def rows(self, text: str, **settings: object) -> list[dict]:
        """Runs a SELECT and returns its rows."""
        answer = self.query(f"{text}\nFORMAT JSONEachRow", **settings)
        return [json.loads(line) for line in answer.splitlines()]

    def value(self, text: str) -> object:
        """Runs a SELECT of one row and one column."""
        (row,) = self.rows(text)
        (value,) = row.values()
        return value
