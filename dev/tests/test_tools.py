"""Loader, verifier and compose check, against a front and an S3 server of their own."""

import contextlib
import copy
import io
import json
import logging
import os
import socket
import unittest
from unittest import mock

import boto3
import yaml
from moto.server import ThreadedMotoServer

import check_compose
import data
import verify
from clickhouse import ClickHouse
from tests.front_process import PASSWORD, FrontProcess

EVENTS = 2000
BUCKET = "verify"

front: FrontProcess
store: ThreadedMotoServer
clickhouse: ClickHouse
endpoint: str


def setUpModule():
    global front, store, clickhouse, endpoint  # noqa: PLW0603
    front = FrontProcess()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store.start()
    endpoint = f"http://127.0.0.1:{port}"
    boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    ).create_bucket(Bucket=BUCKET)
    clickhouse = ClickHouse(f"http://127.0.0.1:{front.port}", "default", PASSWORD, "default")
    with contextlib.redirect_stderr(io.StringIO()):
        data.load_events(clickhouse, "events", EVENTS)


def tearDownModule():
    store.stop()
    front.close()


class Data(unittest.TestCase):
    def test_events_are_as_promised(self):
        (row,) = clickhouse.rows(
            "SELECT count() AS rows, uniqExact(uuid) AS uuids, min(inserted_at) AS first,"
            " max(inserted_at) AS last, countIf(NOT isValidJSON(properties)) AS broken,"
            " countIf(NOT isValidJSON(person_properties)) AS broken_persons,"
            " countIf(timestamp > inserted_at) AS from_the_future FROM events",
            output_format_json_quote_64bit_integers=0,
        )
        self.assertEqual((row["rows"], row["uuids"]), (EVENTS, EVENTS))
        self.assertEqual(row["first"], "2026-01-01 00:00:00.000000")
        self.assertEqual(row["last"], "2026-01-01 23:59:16.800000")
        self.assertEqual((row["broken"], row["broken_persons"], row["from_the_future"]), (0, 0, 0))

    def test_somebody_elses_table_stays(self):
        clickhouse.query("CREATE TABLE precious ENGINE = MergeTree ORDER BY id AS SELECT 7 AS id")
        with self.assertRaisesRegex(SystemExit, "precious"):
            data.load_events(clickhouse, "precious", 10)
        self.assertEqual(clickhouse.value("SELECT sum(id) FROM precious"), 7)

    def test_a_second_load_does_nothing(self):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            data.load_events(clickhouse, "events", EVENTS)
        self.assertIn("there already", said.getvalue())

    def test_loads_are_equal(self):
        checksum = "SELECT sum(cityHash64(*)) FROM (SELECT * FROM {}) SETTINGS max_threads = 2"
        with contextlib.redirect_stderr(io.StringIO()), mock.patch.object(data, "SLICE_ROWS", 700):
            data.load_events(clickhouse, "again", EVENTS)
        self.assertEqual(clickhouse.query(checksum.format("events")), clickhouse.query(checksum.format("again")))


class Verify(unittest.TestCase):
    def write(self, key: str, table_format: str, select: str) -> str:
        url = f"{endpoint}/{BUCKET}/{key}"
        clickhouse.query(
            f"INSERT INTO FUNCTION s3('{url}', 'key', 'secret', '{table_format}') {select}",
            s3_truncate_on_insert=1,
        )
        return f"s3://{BUCKET}/{key}"

    def verify(self, *objects: str, file_format="Parquet", source="SELECT * FROM events"):
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        with mock.patch.dict(os.environ, keys):
            return verify.compare(clickhouse, source, verify.Objects(list(objects), file_format, "auto", endpoint))

    def test_equal(self):
        whole = "SELECT * FROM events"
        self.assertTrue(self.verify(self.write("a.parquet", "Parquet", whole))["equal"])
        for key in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.jsonl.br"):
            written = self.write(key, "JSONEachRow", whole)
            self.assertTrue(self.verify(written, file_format="JSONLines")["equal"], key)

    def test_equal_in_two_files(self):
        halves = [
            self.write(f"{n}.parquet", "Parquet", f"SELECT * FROM events WHERE _offset % 2 = {n}") for n in (0, 1)
        ]
        self.assertTrue(self.verify(*halves)["equal"])
        report = self.verify(halves[0], halves[0])
        self.assertFalse(report["equal"])

    def test_equal_in_other_types(self):
        select = (
            "SELECT * REPLACE (toString(uuid) AS uuid, toString(person_mode) AS person_mode,"
            " toDateTime64(_timestamp, 6, 'UTC') AS _timestamp) FROM events"
        )
        self.assertTrue(self.verify(self.write("types.parquet", "Parquet", select))["equal"])
        select = (
            "SELECT * REPLACE (CAST(properties, 'JSON') AS properties,"
            " formatDateTime(inserted_at, '%FT%T.%fZ') AS inserted_at) FROM events"
        )
        written = self.write("types.jsonl", "JSONEachRow", select)
        self.assertTrue(self.verify(written, file_format="JSONLines")["equal"])

    def test_differences(self):
        cases = {
            "SELECT * REPLACE (if(_offset = 5, '', event) AS event) FROM events": ["event"],
            "SELECT * REPLACE (toDateTime64(timestamp, 3, 'UTC') AS timestamp) FROM events": ["timestamp"],
            "SELECT * REPLACE (if(_offset = 5, NULL, inserted_at) AS inserted_at) FROM events": ["inserted_at"],
        }
        for select, expected in cases.items():
            for file_format, table_format in verify.FORMATS.items():
                written = self.write("different", table_format, select)
                report = self.verify(written, file_format=file_format)
                different = [each["name"] for each in report["columns"] if not each["equal"]]
                self.assertEqual((report["equal"], different), (False, expected))

    def test_values_in_wrong_rows(self):
        select = (
            "SELECT e.* EXCEPT event, o.event AS event FROM events AS e"
            f" JOIN events AS o ON o._offset = (e._offset + 1) % {EVENTS}"
        )
        source = "SELECT * EXCEPT event, event FROM events"
        written = self.write("mixed.parquet", "Parquet", select)
        report = self.verify(written, source=source)
        self.assertTrue(all(each["equal"] for each in report["columns"]), report)
        self.assertFalse(report["equal"])

    def test_missing_rows_and_columns(self):
        written = self.write("short.parquet", "Parquet", "SELECT * FROM events LIMIT 1999")
        report = self.verify(written)
        self.assertEqual(report["rows"], {"source": EVENTS, "object": EVENTS - 1})
        self.assertFalse(report["equal"])
        select = "SELECT * EXCEPT uuid FROM events"
        for file_format, table_format in verify.FORMATS.items():
            report = self.verify(self.write("cut", table_format, select), file_format=file_format)
            self.assertFalse(report["equal"])
            self.assertTrue(report["faults"])

    def test_exit_status(self):
        written = self.write("status.parquet", "Parquet", "SELECT * FROM events")
        environment = {
            "CLICKHOUSE_URL": clickhouse.url,
            "CLICKHOUSE_PASSWORD": PASSWORD,
            "AWS_ENDPOINT_URL_S3": endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
        for sql, key, expected in (
            ("SELECT * FROM events", written, 0),
            ("SELECT * FROM events LIMIT 5", written, 1),
            ("SELECT * FROM events", "s3://verify/missing", 2),
        ):
            command = ["verify", "--source-sql", sql, "--object", key, "--format", "Parquet"]
            with (
                mock.patch.dict(os.environ, environment),
                mock.patch("sys.argv", [*command, "-o", "json"]),
                contextlib.redirect_stdout(io.StringIO()) as said,
                contextlib.redirect_stderr(io.StringIO()),
            ):
                self.assertEqual(verify.main(), expected)
            self.assertEqual(json.loads(said.getvalue())["equal"], expected == 0)


class Compose(unittest.TestCase):
    def setUp(self):
        self.compose = yaml.safe_load(check_compose.FILE.read_text())

    def test_ours_is_in_order(self):
        self.assertEqual(check_compose.check(self.compose), [])

    def test_faults_are_found(self):
        def changed(**values):
            compose = copy.deepcopy(self.compose)
            compose["services"]["minio"] |= values
            return check_compose.check(compose)

        for image in ("minio/minio", "minio/minio:latest", "minio/minio:edge"):
            self.assertIn("not pinned", changed(image=image)[0])
        for port in ("9000:9000", "0.0.0.0:9000:9000", "9000"):
            self.assertIn("not bound", changed(ports=[port])[0])
        self.assertIn("variable", changed(environment={"MINIO_ROOT_PASSWORD": "secret"})[0])
        self.assertTrue(changed(healthcheck={}))
        self.assertTrue(changed(imagee="typo"))


if __name__ == "__main__":
    unittest.main()
