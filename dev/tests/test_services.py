"""The part of the services that needs no services: processes, ports, secrets, variables."""

import os
import signal
import socket
import stat
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import services
from stack import instance as instances
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
    def start(self, program: str) -> Daemon:
        daemon = Daemon("sleeper", self.folder)
        command = Command([sys.executable, "-c", program], {"MARK": "seen"}, self.folder / "work")
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


if __name__ == "__main__":
    unittest.main()
