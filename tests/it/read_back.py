"""Reads exported files with pyarrow, and prints a line for each: rows, sum of `id`, digest of `text` in order.

Compressed lines are read as common readers do it, which stop after the first member or frame; bytes
after it are an error.
"""

import gzip
import hashlib
import json
import sys
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        rows = parquet_rows(path) if path.suffix == ".parquet" else json_rows(path)
        ids, texts = [row[0] for row in rows], [row[1] for row in rows]
        digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
        print(len(rows), sum(ids), digest)


def parquet_rows(path: Path) -> list[tuple[int, str]]:
    table = pq.read_table(path, columns=["id", "text"])
    assert table.schema.field("text").type == pa.string(), table.schema
    return list(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


def json_rows(path: Path) -> list[tuple[int, str]]:
    text = decompress(path)
    assert not text or text.endswith(b"\n"), "the last line has no end"
    parsed = [json.loads(line) for line in text.splitlines()]
    return [(row["id"], row["text"]) for row in parsed]


def decompress(path: Path) -> bytes:
    content = path.read_bytes()
    match path.suffix:
        case ".jsonl":
            return content
        case ".gz":
            one_member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            text = one_member.decompress(content)
            assert one_member.eof and not one_member.unused_data, "more than one gzip member"
            assert text == gzip.decompress(content)
            return text
        case ".zst" | ".br":
            codec = {".zst": "zstd", ".br": "brotli"}[path.suffix]
            with pa.input_stream(pa.BufferReader(content), compression=codec) as stream:
                return stream.read()
    raise SystemExit(f"no reader for {path}")


if __name__ == "__main__":
    main()
