"""Checks docker-compose.yml where there is no Docker to do it.

Shape and types by a schema, and our own rules: every image is pinned by a version, every port is
bound to loopback, every service has a health check, every password comes from a variable.
"""

import re
import sys
from pathlib import Path

import jsonschema
import yaml

FILE = Path(__file__).resolve().parent.parent / "docker-compose.yml"
EXPECTED = {"clickhouse", "minio", "temporal", "postgres"}

PINNED_IMAGE = re.compile(r"[a-z0-9./_-]+:(?P<tag>[\w][\w.-]*)")
# A name such as `latest` or `alpine` may mean something else tomorrow.
VERSION_TAG = re.compile(r"(?:v?\d+\.\d+|RELEASE\.\d{4}-\d\d-\d\d)[\w.-]*")
LOOPBACK_PORT = re.compile(r"127\.0\.0\.1:(?:\d+|\$\{\w+:-\d+\}):\d+")
FROM_VARIABLE = re.compile(r"\$\{\w+:[-?].+\}")
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|ROOT_USER")

TEXT_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
SCHEMA = {
    "type": "object",
    "required": ["services"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "volumes": {"type": "object"},
        "services": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["image", "ports", "healthcheck"],
                "additionalProperties": False,
                "properties": {
                    "image": {"type": "string"},
                    "command": TEXT_OR_LIST,
                    "user": {"type": "string"},
                    "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                    "ports": {"type": "array", "items": {"type": "string"}},
                    "volumes": {"type": "array", "items": {"type": "string"}},
                    "ulimits": {"type": "object"},
                    "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                    "healthcheck": {
                        "type": "object",
                        "required": ["test", "interval", "timeout", "retries"],
                        "additionalProperties": False,
                        "properties": {
                            "test": TEXT_OR_LIST,
                            "interval": DURATION,
                            "timeout": DURATION,
                            "start_period": DURATION,
                            "retries": {"type": "integer", "minimum": 1},
                        },
                    },
                },
            },
        },
    },
}


def main() -> int:
    faults = check(yaml.safe_load(FILE.read_text()))
    for fault in faults:
        print(f"{FILE.name}: {fault}", file=sys.stderr)
    if not faults:
        print(f"{FILE.name}: in order")
    return 1 if faults else 0


def check(compose: object) -> list[str]:
    """All faults of a compose file, in plain words."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    faults = [
        f"{'.'.join(map(str, error.absolute_path)) or 'file'}: {error.message}"
        for error in validator.iter_errors(compose)
    ]
    if faults:
        return faults
    services = compose["services"]
    faults += [f"service {name} is missing" for name in sorted(EXPECTED - services.keys())]
    for name, service in services.items():
        faults += [f"{name}: {fault}" for fault in _service_faults(service)]
    used = {volume for service in services.values() for volume in _named_volumes(service)}
    faults += [f"volume {name} is not declared" for name in sorted(used - set(compose.get("volumes", {})))]
    return faults + _port_clashes(services)


def _service_faults(service: dict) -> list[str]:
    faults = []
    image = PINNED_IMAGE.fullmatch(service["image"])
    if not image or not VERSION_TAG.fullmatch(image["tag"]):
        faults.append(f"image {service['image']} is not pinned by a version")
    faults += [
        f"port {port} is not bound to 127.0.0.1" for port in service["ports"] if not LOOPBACK_PORT.fullmatch(port)
    ]
    faults += [
        f"{name} does not come from a variable"
        for name, value in service.get("environment", {}).items()
        if SECRET_NAME.search(name) and not FROM_VARIABLE.fullmatch(value)
    ]
    return faults


def _named_volumes(service: dict) -> list[str]:
    sources = [volume.split(":")[0] for volume in service.get("volumes", [])]
    return [source for source in sources if not source.startswith((".", "/"))]


def _port_clashes(services: dict) -> list[str]:
    published = [port.rsplit(":", 1)[0] for each in services.values() for port in each["ports"]]
    return [f"{port} is published twice" for port in sorted(set(published)) if published.count(port) > 1]


if __name__ == "__main__":
    sys.exit(main())
