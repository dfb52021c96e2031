"""A small S3 client for looking around: AWS_* variables say where.

`python dev/s3.py make-bucket NAME`, `list BUCKET[/PREFIX]`, `cat BUCKET/KEY`, `put BUCKET/KEY`
(from standard input), `remove BUCKET/KEY`. A key may start with `s3://`.
"""

import argparse
import os
import shutil
import sys

# Stores that are not AWS may not know the checksums that newer clients add. Read at import.
os.environ.setdefault("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
os.environ.setdefault("AWS_RESPONSE_CHECKSUM_VALIDATION", "when_required")
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")

from pyarrow import fs


def connect() -> fs.S3FileSystem:
    """A client for the store that the environment names."""
    return fs.S3FileSystem(
        access_key=os.environ.get("AWS_ACCESS_KEY_ID"),
        secret_key=os.environ.get("AWS_SECRET_ACCESS_KEY"),
        session_token=os.environ.get("AWS_SESSION_TOKEN"),
        region=os.environ.get("AWS_REGION", "us-east-1"),
        endpoint_override=os.environ.get("AWS_ENDPOINT_URL_S3"),
        allow_bucket_creation=True,
        connect_timeout=10,
        request_timeout=60,
    )


def main() -> int:
    options = _options()
    store = connect()
    path = options.path.removeprefix("s3://")
    try:
        _run(store, options.action, path)
    except OSError as error:
        print(f"{options.action} {path}: {error}", file=sys.stderr)
        return 1
    return 0


def _run(store: fs.S3FileSystem, action: str, path: str) -> None:
    if action == "make-bucket":
        store.create_dir(path, recursive=False)
    elif action == "list":
        for size, key in objects(store, path):
            print(f"{size:>14}  s3://{key}")
    elif action == "cat":
        with store.open_input_stream(path) as source:
            shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
    elif action == "put":
        with store.open_output_stream(path) as sink:
            shutil.copyfileobj(sys.stdin.buffer, sink, 1 << 20)
    elif action == "remove":
        store.delete_file(path)


def objects(store: fs.S3FileSystem, path: str) -> list[tuple[int, str]]:
    """Size and key of every object under a bucket or a prefix, by key."""
    bucket, _, prefix = path.partition("/")
    found = store.get_file_info(fs.FileSelector(bucket, recursive=True))
    keys = [(each.path, each.size) for each in found if each.type == fs.FileType.File]
    return [(size, key) for key, size in sorted(keys) if key.startswith(f"{bucket}/{prefix}")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("action", choices=("make-bucket", "list", "cat", "put", "remove"))
    parser.add_argument("path", help="a bucket, or BUCKET/KEY")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
