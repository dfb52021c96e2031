"""The demo's pure parts: what it concludes, and what one sees. No service runs."""

import io
import os
import re
import unittest
from datetime import UTC, datetime, timedelta
from unittest import mock

import demo
from demonstration import exports, temporal
from demonstration.exports import Export, Object
from demonstration.failure import DemoError
from demonstration.screen import Screen, clock, megabytes, paint, table

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def export(*objects: Object, **values) -> Export:
    rows = sum(each.rows for each in objects)
    return Export(
        **{"title": "by hand", "format": "Parquet", "expected_rows": rows, "seconds": 2.0} | values, objects=[*objects]
    )


class Conclusions(unittest.TestCase):
    def report(self, **values) -> dict:
        columns = [{"name": "a", "equal": True}, {"name": "b", "equal": True}]
        rows = {"source": 3, "object": 3}
        return {"faults": [], "rows": rows, "columns": columns, "equal": True} | values

    def faults(self, **values) -> list[str]:
        return exports.faults_of("s3://b/k", self.report(**values), 3)

    def test_equal_is_no_fault(self):
        self.assertEqual(self.faults(), [])

    def test_every_difference_is_a_fault(self):
        columns = [{"name": "a", "equal": True}, {"name": "b", "equal": False}]
        all_columns = [column | {"equal": False} for column in columns]
        for values, word in (
            ({"rows": {"source": 3, "object": 2}, "equal": False}, "2 rows, 3 in the source"),
            ({"rows": {"source": 4, "object": 4}}, "the run says 3"),
            ({"columns": columns, "equal": False}, "different values in b"),
            ({"columns": all_columns, "equal": False}, "every column"),
            ({"equal": False}, "mixed up"),
        ):
            (fault,) = self.faults(**values)
            self.assertIn(word, fault)

    def test_a_comparison_that_ended_early_is_a_fault(self):
        report = {"faults": ["columns are [], not ['a']"], "equal": False}
        self.assertEqual(exports.faults_of("s3://b/k", report, 3), ["s3://b/k: columns are [], not ['a']"])

    def test_rows_that_no_object_has_are_a_fault(self):
        empty = export(expected_rows=5)
        exports.verify_all(None, None, [empty], lambda text: None)
        self.assertEqual(empty.faults, ["by hand: 0 rows, not 5"])

    def test_the_bucket_holds_what_the_runs_say_and_nothing_else(self):
        one = export(Object("x/a", 1, 10, ""), Object("x/b", 1, 20, ""))
        self.assertEqual(exports.check_listing([one], {"x/a": 10, "x/b": 20}), [])
        faults = exports.check_listing([one], {"x/a": 11, "x/c": 1})
        self.assertEqual(len(faults), 3)
        self.assertIn("x/c is in the bucket", faults[0])
        self.assertIn("x/b is not in the bucket", faults[1])
        self.assertIn("11 bytes, not 10", faults[2])

    def test_objects_of_another_bucket_are_refused(self):
        file = {"bucket": exports.BUCKET, "key": "k", "rows": 1, "bytes": 2}
        self.assertEqual(exports.objects_of({"files": [file]}, "q"), [Object("k", 1, 2, "q")])
        with self.assertRaises(DemoError):
            exports.objects_of({"files": [file | {"bucket": "other"}]}, "q")

    def test_windows_are_exact_and_half_open(self):
        start = datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
        self.assertEqual(
            exports.window("t", start, start + timedelta(hours=1)),
            "t >= fromUnixTimestamp64Micro(1767225600000001, 'UTC')"
            " AND t < fromUnixTimestamp64Micro(1767229200000001, 'UTC')",
        )


class Temporal(unittest.TestCase):
    def test_instants_of_the_server(self):
        for text, micros in (
            ("2026-01-01T12:00:00Z", 0),
            ("2026-01-01T12:00:00.5Z", 500_000),
            ("2026-01-01T12:00:00.123456789Z", 123_456),
        ):
            self.assertEqual(temporal.instant(text), NOON.replace(microsecond=micros))
        self.assertEqual(temporal.rfc3339(NOON), "2026-01-01T12:00:00Z")

    def test_a_schedule_with_this_phase_is_due_then(self):
        due = NOON + timedelta(seconds=95)
        self.assertEqual(temporal.phase(due, 60), 35)
        self.assertEqual((int(due.timestamp()) - temporal.phase(due, 60)) % 60, 0)

    def test_the_deepest_failure_is_told(self):
        failure = {"message": "activity error", "cause": {"message": "no such bucket"}}
        self.assertEqual(temporal.message_of(failure), "no such bucket")

    def execution(self, status: str, seconds: float) -> dict:
        closed = {} if status == temporal.RUNNING else {"closeTime": "2026-01-01T12:00:09Z"}
        ids = {"workflowId": "w", "runId": f"r{seconds}"}
        started = temporal.rfc3339(NOON + timedelta(seconds=seconds))
        return {"execution": ids, "status": status, "startTime": started} | closed

    def test_waits_until_enough_have_completed(self):
        running, completed = temporal.RUNNING, temporal.COMPLETED
        answers = [[], [(completed, 1), (running, 2)], [(completed, 1), (completed, 2)]]
        listed = [[temporal.Execution.of(self.execution(*each)) for each in a] for a in answers]
        seen = []
        with (
            mock.patch.object(temporal, "executions", side_effect=listed),
            mock.patch.object(temporal, "POLL_SECONDS", 0),
        ):
            runs = temporal.wait_for("q", 2, 5.0, seen.append)
        self.assertEqual(seen, [0, 1, 2])
        self.assertEqual(temporal.seconds(runs), 8.0)

    def test_any_other_end_is_a_failure(self):
        failed = temporal.Execution.of(self.execution("WORKFLOW_EXECUTION_STATUS_FAILED", 1))
        with (
            mock.patch.object(temporal, "executions", return_value=[failed]),
            mock.patch.object(temporal, "_why", return_value="no such bucket"),
            self.assertRaisesRegex(DemoError, "no such bucket"),
        ):
            temporal.wait_for("q", 1, 5.0, lambda count: None)

    def test_waiting_has_an_end(self):
        with (
            mock.patch.object(temporal, "executions", return_value=[]),
            self.assertRaisesRegex(DemoError, "0 of 1 runs completed in 0 s; nothing was started"),
        ):
            temporal.wait_for("q", 1, 0.0, lambda count: None)


class Looks(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual([clock(0), clock(61.9), clock(600)], ["0:00", "1:01", "10:00"])
        numbers = [megabytes(each) for each in (999, 501_491, 152_761_514, 2.5e9)]
        self.assertEqual(numbers, ["999 B", "501.5 kB", "152.8 MB", "2.5 GB"])

    def test_columns_are_aligned(self):
        lines = table([["object", "rows", "ok"], ["a", "1,000", "yes"], ["longer one", "5", "NO"]])
        self.assertEqual(lines, ["object       rows  ok", "a           1,000  yes", "longer one      5  NO"])

    def test_one_line_for_many_objects(self):
        one, other = Object("p/x/a", 2, 4_000_000, ""), Object("p/x/b", 3, 6_000_000, "")
        self.assertEqual(exports.row(export(one)), ["p/x/a", "2", "4.0 MB", "2.0", "yes"])
        self.assertEqual(
            exports.row(export(one, other, faults=["bad"])),
            ["p/x/ (2 objects)", "5", "10.0 MB", "5.0", "NO"],
        )

    def test_long_names_lose_their_middle(self):
        self.assertEqual(exports.shortened("abcdefgh", 8), "abcdefgh")
        self.assertEqual(exports.shortened("abcdefgh", 7), "abc…fgh")
        for width in range(1, 9):
            self.assertEqual(len(exports.shortened("abcdefgh", width)), width)

    def test_colors_only_where_they_are_wanted(self):
        with mock.patch.dict(os.environ, {"TERM": "xterm"}, clear=True):
            self.assertEqual(paint("x", "red", Terminal()), "\x1b[31mx\x1b[0m")
            self.assertEqual(paint("x", "red", io.StringIO()), "x")
        for unwanted in ({"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}):
            with mock.patch.dict(os.environ, unwanted, clear=True):
                self.assertEqual(paint("x", "red", Terminal()), "x")

    def test_a_log_gets_plain_lines(self):
        stream = io.StringIO()
        screen = Screen(stream)
        with screen.step("loading"), screen.tools_report_here():
            print("events: 5 of 10 rows", file=demo.sys.stderr)
        with self.assertRaises(DemoError), screen.step("exporting"):
            raise DemoError("no")
        with screen.step("comparing"):
            screen.spoil("1 is wrong")
        text = re.sub(r"\d\.\d s", "N s", stream.getvalue())
        self.assertEqual(
            text.splitlines(),
            [
                "0:00  loading",
                "0:00  ✓ N s: events: 5 of 10 rows",
                "0:00  exporting",
                "0:00  ✗ N s",
                "0:00  comparing",
                "0:00  ✗ N s: 1 is wrong",
            ],
        )

    def test_a_terminal_gets_one_line_for_a_step(self):
        with mock.patch.dict(os.environ, {"TERM": "xterm", "NO_COLOR": "1"}, clear=True):
            stream = Terminal()
            with Screen(stream).step("loading"):
                pass
        self.assertRegex(stream.getvalue(), r"\r\x1b\[K✓ 0:00  loading  0\.\d s\n$")


class Surroundings(unittest.TestCase):
    def test_only_the_services_variables_are_adopted(self):
        """And in a server that somebody brings, no table of theirs is touched."""
        theirs = {
            "PATH": "/bin",
            "AWS_PROFILE": "work",
            "AWS_SESSION_TOKEN": "theirs",
            "HTTPS_PROXY": "http://proxy",
            "BATCH_EXPORT_RUNS": "elsewhere.db",
        }
        services = {
            "TEMPORAL_ADDRESS": "127.0.0.1:7233",
            "CLICKHOUSE_URL": "http://127.0.0.1:8123",
            "CLICKHOUSE_DATABASE": "default",
            "AWS_ACCESS_KEY_ID": "ours",
            "BATCH_EXPORT_TEST_JUICEFS_ENDPOINT": "http://127.0.0.1:9000",
        }
        for addresses in (set(), {"TEMPORAL_ADDRESS", "CLICKHOUSE_URL"}):
            with mock.patch.dict(os.environ, theirs, clear=True):
                demo.adopt(services, addresses)
                adopted = dict(os.environ)
            profile = None if addresses else os.devnull
            self.assertEqual(adopted.get("TEMPORAL_CONFIG_FILE"), profile)
            database = demo.OWN_DATABASE if addresses else "default"
            self.assertEqual(adopted["CLICKHOUSE_DATABASE"], database)
            self.assertEqual(adopted["AWS_ACCESS_KEY_ID"], "ours")
            self.assertEqual(adopted["PATH"], "/bin")
            for name in (*theirs, "BATCH_EXPORT_TEST_JUICEFS_ENDPOINT"):
                self.assertTrue(name == "PATH" or name not in adopted, name)

    def test_a_sourced_file_of_ours_brings_nothing(self):
        environment = {"CLICKHOUSE_URL": "http://127.0.0.1:8123", "TEMPORAL_ADDRESS": ""}
        for is_ours, expected in ((True, set()), (False, {"CLICKHOUSE_URL"})):
            with (
                mock.patch.dict(os.environ, environment, clear=True),
                mock.patch.object(demo, "is_ours", return_value=is_ours),
            ):
                self.assertEqual(demo.brought(), expected)


if __name__ == "__main__":
    unittest.main()
