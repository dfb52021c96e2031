"""The services: processes, ports, secrets, variables; and PostgreSQL, which refuses to be root."""

import contextlib
import io
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import services
from stack import instance as instances
from stack import postgres, process
from stack.definitions import SERVICES
from stack.instance import Instance
from stack.process import Command, Daemon


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="services-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        patch = mock.patch.object(instances, "RUNS", self.folder)
        patch.start()
        self.addCleanup(patch.stop)


class Daemons(InFolder):
    def start(self, program: str, prefix: tuple[str, ...] = ()) -> Daemon:
        daemon = Daemon("sleeper", self.folder)
        command = Command([sys.executable, "-c", program], {"MARK": "seen"}, self.folder / "work", prefix)
        daemon.start(command)
        self.addCleanup(daemon.stop)
        return daemon

    def test_starts_detached_and_stops(self):
        daemon = self.start("import time; time.sleep(60)")
        pid = daemon.pid()
        self.assertNotEqual(os.getsid(pid), os.getsid(0))
        self.assertEqual(Daemon("sleeper", self.folder).pid(), pid)
        self.assertTrue(daemon.stop())
        self.assertIsNone(daemon.pid())
        self.assertFalse(daemon.stop())

    def test_a_prefix_becomes_the_program(self):
        daemon = self.start("import time; time.sleep(60)", prefix=("env", "-u", "MARK"))
        self.assertIsNotNone(daemon.pid())

    def test_a_program_without_a_visible_path_is_known_by_name(self):
        daemon = self.start("import time; time.sleep(60)")
        with mock.patch.object(process, "_program", return_value=None):
            self.assertIsNotNone(daemon.pid())
            self.assertTrue(daemon.stop())

    def test_a_crash_is_seen(self):
        daemon = self.start("import os; print(os.environ['MARK'], flush=True); os.abort()")
        self.assertTrue(daemon._wait_gone(10))
        self.assertIn("seen", daemon.log_tail())

    def test_another_process_with_the_pid_is_left_alone(self):
        daemon = self.start("import time; time.sleep(60)")
        pid = daemon.pid()
        text = daemon._pid_file.read_text()
        daemon._pid_file.write_text(text.replace(f'"pid": {pid}', f'"pid": {os.getpid()}'))
        self.assertIsNone(daemon.pid())
        self.assertFalse(daemon.stop())
        os.kill(pid, signal.SIGKILL)


class Instances(InFolder):
    def test_ports_and_secrets_are_kept(self):
        first, second = Instance("one"), Instance("one")
        self.assertEqual(first.port("s3"), second.port("s3"))
        self.assertEqual(first.secret("s3"), second.secret("s3"))
        self.assertNotEqual(first.secret("s3"), Instance("two").secret("s3"))
        for path in self.folder.glob("*/*.json"):
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)

    def test_a_taken_port_is_given_up(self):
        one = Instance("one")
        port = one.port("s3")
        with socket.socket() as taker:
            taker.bind(("127.0.0.1", port))
            taker.listen()
            one.renew_port_if_taken("s3")
        self.assertNotEqual(one.port("s3"), port)

    def test_variables_survive_quoting(self):
        one = Instance("one")
        one.folder.mkdir()
        variables, brought = {"A": "it's $HOME", "B": ""}, {"C": "# no comment"}
        one.write_env(variables, brought)
        self.assertEqual(one.read_env(), variables | brought)
        self.assertEqual(stat.S_IMODE(one.env_file.stat().st_mode), 0o600)


class OwnServices(InFolder):
    def test_a_users_server_is_passed_through(self):
        one = Instance("one")
        given = {"CLICKHOUSE_URL": "http://elsewhere:8123", "CLICKHOUSE_USER": "joe"}
        with mock.patch.dict(os.environ, given, clear=True):
            own, brought = services._variables(one)
            (clickhouse,) = [each for each in SERVICES if each.name == "clickhouse"]
            self.assertTrue(services._is_external(clickhouse))
        self.assertEqual(brought, given)
        self.assertNotIn("CLICKHOUSE_PASSWORD", own)
        self.assertIn("AWS_SECRET_ACCESS_KEY", own)

    def test_a_users_server_stays_one_when_the_file_is_sourced(self):
        one = Instance("one")
        one.folder.mkdir()
        given = {"CLICKHOUSE_URL": "http://elsewhere:8123"}
        with mock.patch.dict(os.environ, given, clear=True):
            own, brought = services._variables(one)
            one.write_env(own, brought)
        with mock.patch.dict(os.environ, own | brought, clear=True):
            external = [each.name for each in SERVICES if services._is_external(each)]
        self.assertEqual(external, ["clickhouse"])

    def test_a_sourced_file_is_not_a_users_server(self):
        one = Instance("one")
        one.folder.mkdir()
        with mock.patch.dict(os.environ, {}, clear=True):
            own, brought = services._variables(one)
        one.write_env(own, brought)
        with mock.patch.dict(os.environ, own, clear=True):
            self.assertFalse(any(services._is_external(each) for each in SERVICES))

    def test_no_password_is_shown(self):
        given = {postgres.URL_VARIABLE: "postgres://joe:p@ss@elsewhere:5432/jobs"}
        (service,) = [each for each in SERVICES if each.name == "postgres"]
        with mock.patch.dict(os.environ, given), contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(services.status(Instance("one"), [service]), 0)
        self.assertEqual(out.getvalue().split(), ["postgres", "yours,", "at", "postgres://elsewhere:5432/jobs"])


class Postgres(InFolder):
    """In a folder that nobody else may pass."""

    def setUp(self):
        super().setUp()
        kept = {name: value for name, value in os.environ.items() if name != postgres.URL_VARIABLE}
        patch = mock.patch.dict(os.environ, kept, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.instance = Instance("one")
        self.services = [each for each in SERVICES if each.name == "postgres"]
        self.addCleanup(self.down, delete=True)
        self.up()

    def up(self):
        with contextlib.redirect_stderr(io.StringIO()):
            services.up(self.instance, self.services)
        self.url = self.instance.read_env()[postgres.URL_VARIABLE]

    def down(self, delete: bool):
        with contextlib.redirect_stderr(io.StringIO()):
            services.down(self.instance, self.services, delete)

    def psql(self, url: str, sql: str) -> str:
        argv = [postgres.program("psql"), "--no-psqlrc", "--tuples-only", "--no-align", "--no-password", url]
        done = subprocess.run(argv, check=False, input=sql, capture_output=True, env={}, text=True, timeout=30)
        return (done.stdout + done.stderr).strip()

    def test_asks_for_the_password(self):
        user, database = "SELECT current_user", "SELECT current_database()"
        self.assertEqual(self.psql(self.url, f"{user}; {database};"), "batch_export\nbatch_export")
        password = self.instance.secret("postgres")
        self.assertIn("authentication failed", self.psql(self.url.replace(password, "wrong"), user))
        self.assertIn("no password supplied", self.psql(self.url.replace(f":{password}", ""), user))

    def test_keeps_data_until_it_is_deleted(self):
        self.psql(self.url, "CREATE TABLE kept AS SELECT 42 AS answer;")
        self.down(delete=False)
        self.up()
        self.assertEqual(self.psql(self.url, "SELECT answer FROM kept;"), "42")
        self.down(delete=True)
        self.assertFalse(self.instance.folder.exists())
        self.assertIn("Connection refused", self.psql(self.url, "SELECT 1;"))

    def test_ends_in_order_under_a_client(self):
        argv = [postgres.program("psql"), "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", self.url]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, text=True) as client:
            client.stdin.write("SELECT 'connected';\n")
            client.stdin.flush()
            self.assertEqual(client.stdout.readline(), "connected\n")
            self.down(delete=False)
            client.stdin.close()
        self.assertIn("database system is shut down", Daemon("postgres", self.instance.folder).log_tail())


if __name__ == "__main__":
    unittest.main()
