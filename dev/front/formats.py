"""Joins the chunks of a streamed result into one document.

The engine writes every chunk of a stream as a document of its own, with its own header and end.
A client must see one header, all rows and one end.
"""

from collections.abc import Callable

ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_ARROW_CONTINUATION = b"\xff\xff\xff\xff"

# Formats without header and end: chunks only have to follow each other.
PLAIN = frozenset(
    name.lower()
    for name in [
        "TSV",
        "TabSeparated",
        "TSVRaw",
        "TabSeparatedRaw",
        "Raw",
        "CSV",
        "TSKV",
        "JSONEachRow",
        "JSONLines",
        "NDJSON",
        "JSONStringsEachRow",
        "JSONCompactEachRow",
        "JSONCompactStringsEachRow",
        "RowBinary",
        "Native",
        "LineAsString",
        "RawBLOB",
        "MsgPack",
        "Null",
    ]
)

# Formats that start with lines of names (and types): how many lines.
HEADER_LINES = {
    f"{base}{suffix}".lower(): lines
    for base in [
        "TSV",
        "TabSeparated",
        "TSVRaw",
        "TabSeparatedRaw",
        "CSV",
        "JSONCompactEachRow",
        "JSONCompactStringsEachRow",
    ]
    for suffix, lines in (("WithNames", 1), ("WithNamesAndTypes", 2))
}

CONTENT_TYPES = {
    "json": "application/json; charset=UTF-8",
    "jsoncompact": "application/json; charset=UTF-8",
    "jsoneachrow": "application/x-ndjson; charset=UTF-8",
    "csv": "text/csv; charset=UTF-8; header=absent",
    "csvwithnames": "text/csv; charset=UTF-8; header=present",
    "tabseparated": "text/tab-separated-values; charset=UTF-8",
    "tsv": "text/tab-separated-values; charset=UTF-8",
}

Piece = memoryview | bytes
Joiner = Callable[[memoryview], Piece]


def content_type(name: str) -> str:
    """The media type that the server announces for a format."""
    return CONTENT_TYPES.get(name.lower(), "application/octet-stream")


def can_stream(name: str) -> bool:
    """Whether chunks of this format can be joined; others are made in one piece by the engine."""
    name = name.lower()
    return (
        name == "arrowstream"
        or name in PLAIN
        or name in HEADER_LINES
        or name in ("rowbinarywithnames", "rowbinarywithnamesandtypes")
    )


def end_of_document(name: str) -> bytes:
    """What must follow the last chunk."""
    return ARROW_END if name.lower() == "arrowstream" else b""


def joiner(name: str) -> Joiner:
    """A function that takes the chunks in turn and returns what the client must see of each."""
    name = name.lower()
    if name == "arrowstream":
        return _HeaderOnce(_arrow_schema_length, _without_arrow_end)
    if name in HEADER_LINES:
        lines = HEADER_LINES[name]
        return _HeaderOnce(lambda chunk: _lines_length(chunk, lines))
    if name == "rowbinarywithnames":
        return _HeaderOnce(lambda chunk: _row_binary_header_length(chunk, 1))
    if name == "rowbinarywithnamesandtypes":
        return _HeaderOnce(lambda chunk: _row_binary_header_length(chunk, 2))
    return lambda chunk: chunk


class _HeaderOnce:
    """Keeps the header of the first chunk and drops those of the later ones."""

    def __init__(
        self,
        header_length: Callable[[memoryview], int],
        trim_end: Callable[[memoryview], memoryview] = lambda chunk: chunk,
    ):
        self._header_length = header_length
        self._trim_end = trim_end
        self._seen_first = False

    def __call__(self, chunk: memoryview) -> memoryview:
        chunk = self._trim_end(chunk)
        if not self._seen_first:
            self._seen_first = True
            return chunk
        return chunk[self._header_length(chunk) :]


def _without_arrow_end(chunk: memoryview) -> memoryview:
    return chunk[:-8] if chunk[-8:] == ARROW_END else chunk


def _arrow_schema_length(chunk: memoryview) -> int:
    """Length of the first message, which has metadata only: prefix, length, padded flatbuffer."""
    if chunk[:4] != _ARROW_CONTINUATION:
        raise ValueError("an Arrow chunk does not start with a message")
    return 8 + int.from_bytes(chunk[4:8], "little")


def _lines_length(chunk: memoryview, lines: int) -> int:
    head = bytes(chunk[: 1 << 20])
    position = 0
    for _ in range(lines):
        position = head.index(b"\n", position) + 1
    return position


def _row_binary_header_length(chunk: memoryview, lists: int) -> int:
    """Length of the column count followed by lists of names (and types)."""
    columns, position = _read_varint(chunk, 0)
    for _ in range(lists * columns):
        length, position = _read_varint(chunk, position)
        position += length
    return position


def _read_varint(chunk: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = chunk[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
