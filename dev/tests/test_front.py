"""The front must behave as the documented ClickHouse HTTP server does."""

import contextlib
import http.client
import io
import json
import re
import socket
import struct
import time
import unittest

import pyarrow.ipc
import pyarrow.parquet

from tests.front_process import PASSWORD, FrontProcess, ask, basic, read_to_end

front: FrontProcess

# Fails at row 100,000, after 100 blocks.
FAILS_LATE = "SELECT throwIf(number = 100000) AS x, number FROM numbers(200000) FORMAT TSV"
FAILS_LATE_SETTINGS = {"max_block_size": 1000, "max_threads": 1}
ENDLESS = "SELECT number, repeat('x', 100) FROM system.numbers FORMAT TSV"
SILENT = "SELECT count() FROM system.numbers WHERE cityHash64(number) = 1"


def setUpModule():
    global front  # noqa: PLW0603
    front = FrontProcess()


def tearDownModule():
    seconds = front.close()
    assert seconds < 6, f"the front needed {seconds:.1f} s to end"


class Handles(unittest.TestCase):
    def test_health_needs_no_login(self):
        for path in ("/ping", "/replicas_status", "/"):
            status, _, body = front.query(method="GET", path=path, headers={})
            self.assertEqual((status, body), (200, b"Ok.\n"), path)

    def test_unknown_path(self):
        self.assertEqual(front.query(method="GET", path="/nope")[0], 404)


class Login(unittest.TestCase):
    def check(self, headers, expected=200, **arguments):
        status, answered, body = front.query("SELECT 1", headers=headers, **arguments)
        self.assertEqual(status, expected, body)
        return answered, body

    def test_three_ways(self):
        self.check(basic())
        self.check({"X-ClickHouse-User": "default", "X-ClickHouse-Key": PASSWORD})
        self.check({"X-ClickHouse-Key": PASSWORD})
        self.check({}, user="default", password=PASSWORD)

    def test_wrong(self):
        wrong = [
            (basic(password="wrong"), {}),
            (basic(user="somebody"), {}),
            ({"X-ClickHouse-User": "default", "X-ClickHouse-Key": "wrong"}, {}),
            ({}, {"user": "default", "password": "wrong"}),
            ({}, {}),
        ]
        for headers, arguments in wrong:
            answered, body = self.check(headers, 403, **arguments)
            self.assertEqual(answered["X-ClickHouse-Exception-Code"], "516")
            self.assertRegex(body.decode(), r"^Code: 516\. DB::Exception: .*\(AUTHENTICATION_FAILED\)")

    def test_two_ways_at_once(self):
        self.check(basic() | {"X-ClickHouse-User": "default"}, 403)


class Queries(unittest.TestCase):
    def test_places_of_the_query(self):
        self.assertEqual(front.query("SELECT 1")[2], b"1\n")
        self.assertEqual(front.query(method="GET", query="SELECT 1")[2], b"1\n")
        self.assertEqual(front.query("1 + 1", query="SELECT")[2], b"2\n")

    def test_format(self):
        text = "SELECT 1 AS x"
        self.assertEqual(front.query(text, default_format="JSONEachRow")[2], b'{"x":1}\n')
        headers = basic() | {"X-ClickHouse-Format": "CSVWithNames"}
        self.assertEqual(front.query(text, headers=headers)[2], b'"x"\n1\n')
        clause = f"{text} FORMAT JSONEachRow"
        self.assertEqual(front.query(clause, default_format="TSV")[2], b'{"x":1}\n')
        clause = f"{text} FORMAT JSONEachRow SETTINGS max_threads = 1;"
        status, answered, body = front.query(clause)
        self.assertEqual((status, body), (200, b'{"x":1}\n'))
        self.assertEqual(answered["X-ClickHouse-Format"], "JSONEachRow")

    def test_parameters_in_url(self):
        text = "SELECT {a:String}, {b:UInt8}, {c:Nullable(String)}"
        body = front.query(text, param_a="x'y\\t日本", param_b="7", param_c="\\N")[2]
        self.assertEqual(body.decode(), "x\\'y\\t日本\t7\t\\N\n")

    def test_parameters_in_form(self):
        boundary = "a-boundary"
        fields = {
            # Parameters come escaped, as in TSV.
            "param_a": "it's 日本 --a-boundary\\nend ",
            "query": "SELECT {a:String} AS a,\n getSetting('max_threads') AS b FORMAT JSONEachRow",
        }
        parts = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        ]
        headers = basic() | {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        form = "".join(parts) + f"--{boundary}--\r\n"
        status, _, body = front.query(form, headers=headers, max_threads=7)
        self.assertEqual(status, 200, body)
        self.assertEqual(json.loads(body), {"a": "it's 日本 --a-boundary\nend ", "b": 7})

    def test_settings_do_not_leak(self):
        text = "SELECT getSetting('max_block_size')"
        self.assertEqual(front.query(text, max_block_size=77)[2], b"77\n")
        self.assertNotEqual(front.query(text)[2], b"77\n")

    def test_database(self):
        front.query("CREATE DATABASE IF NOT EXISTS other")
        self.assertEqual(front.query("SELECT currentDatabase()", database="other")[2], b"other\n")
        status, answered, _ = front.query("SELECT 1", database="missing")
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (404, "81"))

    def test_get_is_read_only(self):
        status, answered, _ = front.query(method="GET", query="CREATE DATABASE never")
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (500, "164"))
        status, answered, _ = front.query("CREATE DATABASE never", readonly=1)
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (500, "164"))

    def test_headers(self):
        answered = front.query("SELECT count() FROM numbers(1000)", query_id="my-id")[1]
        self.assertEqual(answered["X-ClickHouse-Query-Id"], "my-id")
        self.assertRegex(answered["X-ClickHouse-Exception-Tag"], r"^[a-z]{16}$")
        self.assertEqual(json.loads(answered["X-ClickHouse-Summary"])["read_rows"], "1000")
        summary = json.loads(front.query("SELECT number FROM numbers(7)")[1]["X-ClickHouse-Summary"])
        self.assertEqual((summary["read_rows"], summary["result_rows"]), ("7", "7"))

    def test_connection_is_kept(self):
        with contextlib.closing(front.connection()) as connection:
            for text, expected in (("SELECT 1", 200), ("SELECT 1 +", 400), ("SELECT 2", 200)):
                self.assertEqual(ask(connection, text)[0], expected)
                used = connection.sock
                self.assertIsNotNone(used)

    def test_http_1_0(self):
        with socket.create_connection(("127.0.0.1", front.port), timeout=10) as raw:
            login = basic()["Authorization"]
            raw.sendall(f"GET /?query=SELECT+7 HTTP/1.0\r\nAuthorization: {login}\r\n\r\n".encode())
            head, _, body = read_to_end(raw).partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertEqual(body, b"7\n")


class Errors(unittest.TestCase):
    def test_status_and_text(self):
        cases = [
            ("SELECT 1 +", 400, 62, "SYNTAX_ERROR"),
            ("SELECT * FROM missing", 404, 60, "UNKNOWN_TABLE"),
            ("SELECT * FROM missing.missing", 404, 81, "UNKNOWN_DATABASE"),
            ("SELECT missing", 404, 47, "UNKNOWN_IDENTIFIER"),
            ("SELECT missing(1)", 404, 46, "UNKNOWN_FUNCTION"),
            ("SELECT 1 FORMAT Missing", 404, 73, "UNKNOWN_FORMAT"),
            ("SELECT throwIf(1)", 500, 395, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"),
            ("DROP TABLE missing", 404, 60, "UNKNOWN_TABLE"),
            ("SELECT sleep(3)", 408, 159, "TIMEOUT_EXCEEDED"),
        ]
        for text, expected, code, name in cases:
            status, answered, body = front.query(text, max_execution_time=1)
            self.assertEqual(status, expected, body)
            self.assertEqual(answered["X-ClickHouse-Exception-Code"], str(code))
            pattern = rf"^Code: {code}\. DB::Exception: .*\({name}\) \(version .* \(official build\)\)\n$"
            self.assertRegex(body.decode(), re.compile(pattern, re.DOTALL))

    def test_unknown_setting(self):
        status, answered, _ = front.query("SELECT 1", no_such_setting=1)
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (404, "115"))

    def test_unsupported_is_said(self):
        self.assertEqual(front.query("SELECT 1", compress=1)[0], 501)


class LateErrors(unittest.TestCase):
    """An exception after the first byte."""

    def fail_late(self, form=None):
        headers = {"X-Front-Exception-Form": form} if form else {}
        with front.raw(FAILS_LATE, headers, **FAILS_LATE_SETTINGS) as raw:
            head, _, body = read_to_end(raw).partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 200 "))
        tag = re.search(rb"X-ClickHouse-Exception-Tag: (\w+)", head)
        return tag and tag[1], body

    def test_tagged_frame(self):
        tag, body = self.fail_late()
        self.assertFalse(body.endswith(b"0\r\n\r\n"), "the response must not end cleanly")
        last = _chunks(body)[-1]
        match = re.fullmatch(
            rb"\r\n__exception__\r\n%s\r\n(Code: 395\..*\n)(\d+) %s\r\n__exception__\r\n" % (tag, tag),
            last,
            re.DOTALL,
        )
        self.assertIsNotNone(match, last)
        self.assertEqual(int(match[2]), len(match[1]))

    def test_marker(self):
        tag, body = self.fail_late("marker")
        self.assertIsNone(tag)
        self.assertFalse(body.endswith(b"0\r\n\r\n"))
        self.assertRegex(_chunks(body)[-1], rb"^__exception__\r\nCode: 395\..*\)\)\n$")

    def test_bare_message_with_a_clean_end(self):
        tag, body = self.fail_late("bare")
        self.assertIsNone(tag)
        self.assertTrue(body.endswith(b"\r\n0\r\n\r\n"))
        self.assertRegex(_chunks(body)[-1], rb"^Code: 395\. DB::Exception: .*\)\)\n$")

    def test_client_library_sees_the_break(self):
        with self.assertRaises(http.client.IncompleteRead):
            front.query(FAILS_LATE, **FAILS_LATE_SETTINGS)

    def test_wait_end_of_query_gives_a_status(self):
        status, answered, _ = front.query(FAILS_LATE, wait_end_of_query=1, **FAILS_LATE_SETTINGS)
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (500, "395"))


class Streams(unittest.TestCase):
    """Results of many blocks must look like one document."""

    def ask(self, output_format: str, rows: int = 25) -> bytes:
        text = f"SELECT number, toString(number) AS s FROM numbers({rows}) FORMAT {output_format}"
        status, _, body = front.query(text, max_block_size=10)
        self.assertEqual(status, 200, body)
        return body

    def test_arrow_stream(self):
        body = self.ask("ArrowStream")
        self.assertTrue(body.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00"))
        kinds = [message.type for message in pyarrow.ipc.MessageReader.open_stream(body)]
        self.assertEqual(kinds, ["schema", *["record batch"] * 3])
        source = io.BytesIO(body)
        table = pyarrow.ipc.open_stream(source).read_all()
        self.assertEqual(table["number"].to_pylist(), list(range(25)))
        self.assertEqual(source.tell(), len(body))

    def test_empty_arrow_stream(self):
        body = self.ask("ArrowStream", rows=0)
        table = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all()
        self.assertEqual((table.num_rows, table.column_names), (0, ["number", "s"]))

    def test_headers_come_once(self):
        plain = b"".join(b"%d\t%d\n" % (n, n) for n in range(25))
        self.assertEqual(self.ask("TSV"), plain)
        self.assertEqual(self.ask("TSVWithNames"), b"number\ts\n" + plain)
        self.assertEqual(self.ask("TSVWithNamesAndTypes"), b"number\ts\nUInt64\tString\n" + plain)
        self.assertEqual(self.ask("CSVWithNames").count(b"number"), 1)
        self.assertEqual(len(self.ask("JSONEachRow").splitlines()), 25)

    def test_empty_text_keeps_its_header(self):
        self.assertEqual(self.ask("TSVWithNames", rows=0), b"number\ts\n")
        self.assertEqual(self.ask("TSV", rows=0), b"")

    def test_row_binary_header_comes_once(self):
        body = self.ask("RowBinaryWithNamesAndTypes")
        header = b"\x02\x06number\x01s\x06UInt64\x06String"
        rows = b"".join(struct.pack("<QB", n, len(str(n))) + str(n).encode() for n in range(25))
        self.assertEqual(body, header + rows)

    def test_whole_documents(self):
        self.assertEqual(len(json.loads(self.ask("JSON"))["data"]), 25)
        table = pyarrow.parquet.read_table(io.BytesIO(self.ask("Parquet")))
        self.assertEqual(table.num_rows, 25)

    def test_slow_reader_holds_back_the_engine(self):
        text = "SELECT number, repeat('x', 1000) FROM numbers(3000000) FORMAT ArrowStream"
        before = front.resident_bytes()
        arguments = {"query_id": "slow", "output_format_arrow_compression_method": "none"}
        with front.raw(text, **arguments) as raw:
            raw.recv(1000)
            time.sleep(1.5)
            (row,) = front.rows("SELECT read_rows FROM system.processes WHERE query_id = 'slow'")
            self.assertLess(int(row["read_rows"]), 1_000_000)
            self.assertLess(front.resident_bytes() - before, 600 << 20)
        front.wait_running("slow", expected=False)


class Inserts(unittest.TestCase):
    def setUp(self):
        front.query("DROP TABLE IF EXISTS t")
        front.query("CREATE TABLE t (a Int32, b String) ENGINE = MergeTree ORDER BY a")

    def insert(self, *arguments, **more):
        status, answered, body = front.query(*arguments, **more)
        self.assertEqual((status, body), (200, b""))
        return json.loads(answered["X-ClickHouse-Summary"])

    def rows(self):
        return [(row["a"], row["b"]) for row in front.rows("SELECT * FROM t ORDER BY a")]

    def test_values(self):
        self.insert("INSERT INTO t VALUES (1, 'a;b'), (2, 'select')")
        self.insert("(3, 'c')", query="INSERT INTO t (a, b) VALUES")
        self.assertEqual(self.rows(), [(1, "a;b"), (2, "select"), (3, "c")])

    def test_rows_after_the_query(self):
        summary = self.insert('INSERT INTO t FORMAT JSONEachRow\n{"a":1,"b":"x"}\n{"a":2,"b":"y"}')
        self.assertEqual(summary["written_rows"], "2")
        self.assertEqual(self.rows(), [(1, "x"), (2, "y")])

    def test_columns_named_as_keywords(self):
        front.query("DROP TABLE IF EXISTS k")
        front.query("CREATE TABLE k (values Int32, format Int32) ENGINE = Memory")
        self.insert("1\t2", query="INSERT INTO k (values, format) FORMAT TSV")
        self.insert("INSERT INTO k (values, format) SELECT 3, 4")
        self.assertEqual(front.query("SELECT * FROM k ORDER BY ALL")[2], b"1\t2\n3\t4\n")

    def test_rows_in_the_body(self):
        row = struct.pack("<iB", 7, 3) + b"\xff\x00\n"
        self.insert(row, query="INSERT INTO t(a, b) FORMAT RowBinary")
        self.assertEqual(front.query("SELECT hex(b) FROM t")[2], b"FF000A\n")

    def test_many_rows_in_chunks(self):
        pieces = (b"".join(b"%d\tx\n" % (n + k) for k in range(1000)) for n in range(0, 500000, 1000))
        with contextlib.closing(front.connection()) as connection:
            connection.request(
                "POST",
                "/?query=INSERT%20INTO%20t%20FORMAT%20TSV",
                pieces,
                basic(),
                encode_chunked=True,
            )
            self.assertEqual(connection.getresponse().status, 200)
        self.assertEqual(front.query("SELECT count(), sum(a) FROM t")[2], b"500000\t124999750000\n")

    def test_insert_select_and_parameters(self):
        self.insert("INSERT INTO t SELECT number, {b:String} FROM numbers(2)", param_b="p")
        self.assertEqual(self.rows(), [(0, "p"), (1, "p")])

    def test_bad_rows(self):
        status, answered, _ = front.query('INSERT INTO t FORMAT JSONEachRow {"a":"zz"}')
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (400, "27"))
        status, _, _ = front.query("x" * (3 << 20), query="INSERT INTO missing FORMAT TSV")
        self.assertEqual(status, 404)
        self.assertEqual(self.rows(), [])


class Running(unittest.TestCase):
    """Queries that run: seen, killed, left."""

    def test_processes_show_the_clients_id(self):
        with front.raw(ENDLESS, query_id="seen") as raw:
            raw.recv(1000)
            front.wait_running("seen")
            (row,) = front.rows("SELECT * FROM system.processes WHERE query_id = 'seen'")
            self.assertEqual((row["user"], row["query"]), ("default", ENDLESS))
        front.wait_running("seen", expected=False)

    def test_kill_a_stream(self):
        with front.raw(ENDLESS, query_id="streaming") as raw:
            raw.recv(1000)
            body = front.query("KILL QUERY WHERE query_id = 'streaming' ASYNC")[2]
            self.assertEqual(body.split(b"\t")[:3], [b"waiting", b"streaming", b"default"])
            self.assertIn(b"Code: 394. DB::Exception", read_to_end(raw))
        front.wait_running("streaming", expected=False)

    def test_kill_before_the_first_byte(self):
        for mode, kill_status in (("ASYNC", b"waiting"), ("SYNC", b"finished"), ("", b"waiting")):
            silent = front.in_background(SILENT, query_id="silent")
            front.wait_running("silent")
            body = front.query(f"KILL QUERY WHERE query_id = 'silent' {mode}")[2]
            self.assertEqual(body.split(b"\t")[0], kill_status)
            status, answered, _ = silent.wait()
            self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (500, "394"))

    def test_kill_in_a_format_and_by_user(self):
        silent = front.in_background(SILENT, query_id="by-user")
        front.wait_running("by-user")
        where = "user = 'default' AND query LIKE '%cityHash64%'"
        body = front.query(f"KILL QUERY WHERE {where} SYNC FORMAT JSONEachRow")[2]
        self.assertEqual(json.loads(body)["query_id"], "by-user")
        silent.wait()

    def test_kill_nothing(self):
        status, _, body = front.query("KILL QUERY WHERE query_id = 'nobody'")
        self.assertEqual((status, body), (200, b""))

    def test_one_id_runs_once(self):
        silent = front.in_background(SILENT, query_id="twice")
        front.wait_running("twice")
        status, answered, _ = front.query("SELECT 1", query_id="twice")
        self.assertEqual((status, answered["X-ClickHouse-Exception-Code"]), (500, "216"))
        front.query("KILL QUERY WHERE query_id = 'twice' SYNC")
        silent.wait()

    def test_leaving_ends_the_query_if_asked_for(self):
        with front.raw(SILENT, query_id="left", cancel_http_readonly_queries_on_client_close=1):
            front.wait_running("left")
        front.wait_running("left", expected=False)

    def test_leaving_alone_does_not_end_a_silent_query(self):
        with front.raw(SILENT, query_id="stays"):
            front.wait_running("stays")
        time.sleep(1)
        self.assertIn("stays", front.running_ids())
        front.query("KILL QUERY WHERE query_id = 'stays' SYNC")
        front.wait_running("stays", expected=False)

    def test_leaving_a_stream_ends_it(self):
        with front.raw(ENDLESS, query_id="unread") as raw:
            raw.recv(1000)
        front.wait_running("unread", expected=False)

    def test_queries_run_side_by_side(self):
        started = time.monotonic()
        sleepers = [front.in_background("SELECT sleep(1)") for _ in range(12)]
        for sleeper in sleepers:
            self.assertEqual(sleeper.wait()[0], 200)
        self.assertLess(time.monotonic() - started, 4)

    def test_send_timeout_ends_a_query_that_nobody_reads(self):
        with front.raw(ENDLESS, query_id="stuck", http_send_timeout=1) as raw:
            raw.recv(1000)
            front.wait_running("stuck", expected=False, seconds=15)


def _chunks(body: bytes) -> list[bytes]:
    """Takes chunked transfer apart; the last, empty chunk doesn't count."""
    chunks = []
    position = 0
    while position < len(body):
        line_end = body.index(b"\r\n", position)
        length = int(body[position:line_end], 16)
        if length:
            chunks.append(body[line_end + 2 : line_end + 2 + length])
        position = line_end + 2 + length + 2
    return chunks


if __name__ == "__main__":
    unittest.main()
