"""The services: how each is started, when it is ready, and which variables lead to it."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import postgres
from .instance import LOOPBACK, ROOT, Instance, write_private
from .process import Command

PROGRAMS = Path(sys.executable).parent
REGION = "us-east-1"
PREPARE_SECONDS = 60.0


@dataclass(frozen=True)
class Service:
    """One service of an instance."""

    name: str
    # The variable that says "I have one already"; it stands first in `variables`, too.
    address_variable: str
    ports: tuple[str, ...]
    command: Callable[[Instance], Command]
    is_ready: Callable[[Instance], bool]
    variables: Callable[[Instance], dict[str, str]]
    # Variables that a user's own service may need as well.
    passed_through: tuple[str, ...]
    # Files outside the instance's folder that the program leaves behind.
    leftovers: Callable[[Instance], list[Path]] = lambda _instance: []
    stop_signal: signal.Signals = signal.SIGTERM


def _answers(url: str, timeout: float = 2.0) -> bool:
    """Whether an HTTP server answers with success. Proxies have no say about loopback."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return response.status == 200
    except (OSError, urllib.error.URLError):
        return False


# --- Temporal

# The profile of somebody's own server, with its keys and certificates, is nothing for ours.
NO_PROFILE = {"TEMPORAL_CONFIG_FILE": os.devnull}


def _temporal_command(instance: Instance) -> Command:
    folder = instance.folder / "temporal"
    argv = [
        str(PROGRAMS / "temporal"),
        "server",
        "start-dev",
        f"--ip={LOOPBACK}",
        f"--port={instance.port('temporal')}",
        f"--ui-port={instance.port('temporal_ui')}",
        f"--http-port={instance.port('temporal_http')}",
        f"--metrics-port={instance.port('temporal_metrics')}",
        f"--db-filename={folder / 'temporal.db'}",
        "--log-level=warn",
    ]
    return Command(argv, {"GOMEMLIMIT": "512MiB"} | NO_PROFILE, folder)


def _temporal_ready(instance: Instance) -> bool:
    # The UI answers for the server behind it, so this asks both.
    port = instance.port("temporal_ui")
    return _answers(f"http://{LOOPBACK}:{port}/api/v1/namespaces/default")


def _temporal_variables(instance: Instance) -> dict[str, str]:
    return {
        "TEMPORAL_ADDRESS": f"{LOOPBACK}:{instance.port('temporal')}",
        "TEMPORAL_NAMESPACE": "default",
        "TEMPORAL_UI_URL": f"http://{LOOPBACK}:{instance.port('temporal_ui')}",
    } | NO_PROFILE


# --- ClickHouse


def _clickhouse_command(instance: Instance) -> Command:
    folder = instance.folder / "clickhouse"
    argv = [
        sys.executable,
        str(ROOT / "dev" / "clickhouse_front.py"),
        f"--path={folder / 'data'}",
        f"--port={instance.port('clickhouse')}",
    ]
    return Command(argv, {"CLICKHOUSE_PASSWORD": instance.secret("clickhouse")}, folder)


def _clickhouse_ready(instance: Instance) -> bool:
    return _answers(f"http://{LOOPBACK}:{instance.port('clickhouse')}/ping")


def _clickhouse_variables(instance: Instance) -> dict[str, str]:
    return {
        "CLICKHOUSE_URL": f"http://{LOOPBACK}:{instance.port('clickhouse')}",
        "CLICKHOUSE_USER": "default",
        "CLICKHOUSE_PASSWORD": instance.secret("clickhouse"),
        "CLICKHOUSE_DATABASE": "default",
    }


# --- S3: SeaweedFS


def _s3_command(instance: Instance) -> Command:
    folder = instance.folder / "s3"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "s3.json"
    identity = {
        "name": "dev",
        "credentials": [{"accessKey": instance.secret("s3_access", 20), "secretKey": instance.secret("s3", 40)}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    write_private(config, json.dumps({"identities": [identity]}))
    (folder / "data").mkdir(exist_ok=True)
    argv = [
        str(PROGRAMS / "weed"),
        "-logtostderr=true",
        "server",
        f"-dir={folder / 'data'}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        f"-master.port={instance.port('s3_master')}",
        f"-master.port.grpc={instance.port('s3_master_grpc')}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={instance.port('s3_volume')}",
        f"-volume.port.grpc={instance.port('s3_volume_grpc')}",
        # Every bucket takes several volumes; empty ones cost nothing.
        "-volume.max=10000",
        "-filer",
        f"-filer.port={instance.port('s3_filer')}",
        f"-filer.port.grpc={instance.port('s3_filer_grpc')}",
        # Paths of sockets are short by nature, so these are relative to the folder.
        "-filer.localSocket=filer.sock",
        "-s3",
        f"-s3.config={config}",
        f"-s3.port={instance.port('s3')}",
        f"-s3.port.grpc={instance.port('s3_grpc')}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.localSocket=s3.sock",
        # A missing bucket is an error, as it is at AWS.
        "-s3.autoCreateBucket=false",
        "-s3.iam=false",
    ]
    return Command(argv, {"GOMEMLIMIT": "768MiB"}, folder)


def _s3_ready(instance: Instance) -> bool:
    return _answers(f"http://{LOOPBACK}:{instance.port('s3')}/healthz")


def _s3_variables(instance: Instance) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": f"http://{LOOPBACK}:{instance.port('s3')}",
        "AWS_ACCESS_KEY_ID": instance.secret("s3_access", 20),
        "AWS_SECRET_ACCESS_KEY": instance.secret("s3", 40),
        "AWS_REGION": REGION,
    }


def _s3_leftovers(instance: Instance) -> list[Path]:
    roles = {"master": "s3_master", "volume": "s3_volume", "filer": "s3_filer", "s3": "s3"}
    return [
        Path(f"/tmp/seaweedfs-{role}-grpc-{instance.port(f'{port}_grpc')}.sock")  # noqa: S108
        for role, port in roles.items()
    ]


# --- MinIO's S3 layer: the JuiceFS gateway


def _juicefs_command(instance: Instance) -> Command:
    folder = instance.folder / "juicefs"
    folder.mkdir(parents=True, exist_ok=True)
    meta = f"sqlite3://{folder / 'meta.db'}"
    environment = {
        "MINIO_ROOT_USER": instance.secret("juicefs_access", 20),
        "MINIO_ROOT_PASSWORD": instance.secret("juicefs", 40),
        "GOMEMLIMIT": "512MiB",
    }
    if not (folder / "meta.db").exists():
        argv = [
            str(PROGRAMS / "juicefs"),
            "--no-agent",
            "format",
            "--storage=file",
            f"--bucket={folder / 'objects'}/",
            "--trash-days=0",
            meta,
            "dev",
        ]
        subprocess.run(argv, check=True, capture_output=True, timeout=PREPARE_SECONDS)
    argv = [
        str(PROGRAMS / "juicefs"),
        "--no-agent",
        "gateway",
        "--multi-buckets",
        "--keep-etag",
        "--no-banner",
        "--no-usage-report",
        "--backup-meta=0",
        "--buffer-size=64",
        "--cache-size=64",
        f"--cache-dir={folder / 'cache'}",
        f"--log={folder / 'gateway.log'}",
        f"--metrics={LOOPBACK}:{instance.port('juicefs_metrics')}",
        meta,
        f"{LOOPBACK}:{instance.port('juicefs')}",
    ]
    return Command(argv, environment, folder)


def _juicefs_ready(instance: Instance) -> bool:
    return _answers(f"http://{LOOPBACK}:{instance.port('juicefs')}/minio/health/live")


def _juicefs_variables(instance: Instance) -> dict[str, str]:
    return {
        "BATCH_EXPORT_TEST_JUICEFS_ENDPOINT": f"http://{LOOPBACK}:{instance.port('juicefs')}",
        "BATCH_EXPORT_TEST_JUICEFS_ACCESS_KEY_ID": instance.secret("juicefs_access", 20),
        "BATCH_EXPORT_TEST_JUICEFS_SECRET_ACCESS_KEY": instance.secret("juicefs", 40),
    }


SERVICES = (
    Service(
        "temporal",
        "TEMPORAL_ADDRESS",
        ("temporal", "temporal_ui", "temporal_http", "temporal_metrics"),
        _temporal_command,
        _temporal_ready,
        _temporal_variables,
        ("TEMPORAL_NAMESPACE", "TEMPORAL_UI_URL", "TEMPORAL_API_KEY"),
    ),
    Service(
        "clickhouse",
        "CLICKHOUSE_URL",
        ("clickhouse",),
        _clickhouse_command,
        _clickhouse_ready,
        _clickhouse_variables,
        ("CLICKHOUSE_USER", "CLICKHOUSE_PASSWORD", "CLICKHOUSE_DATABASE"),
    ),
    Service(
        "s3",
        "AWS_ENDPOINT_URL_S3",
        (
            "s3",
            "s3_grpc",
            "s3_master",
            "s3_master_grpc",
            "s3_volume",
            "s3_volume_grpc",
            "s3_filer",
            "s3_filer_grpc",
        ),
        _s3_command,
        _s3_ready,
        _s3_variables,
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION"),
        _s3_leftovers,
    ),
    Service(
        "juicefs",
        "BATCH_EXPORT_TEST_JUICEFS_ENDPOINT",
        ("juicefs", "juicefs_metrics"),
        _juicefs_command,
        _juicefs_ready,
        _juicefs_variables,
        (
            "BATCH_EXPORT_TEST_JUICEFS_ACCESS_KEY_ID",
            "BATCH_EXPORT_TEST_JUICEFS_SECRET_ACCESS_KEY",
        ),
    ),
    Service(
        "postgres",
        postgres.URL_VARIABLE,
        ("postgres",),
        postgres.command,
        postgres.is_ready,
        postgres.variables,
        (),
        # At SIGTERM it would wait until every client is gone.
        stop_signal=signal.SIGINT,
    ),
)
