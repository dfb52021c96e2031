"""What a client sent, taken from URL, headers and body."""

import base64
import binascii
import email.parser
import hmac
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import BinaryIO
from urllib.parse import parse_qsl, urlsplit

from .errors import FrontError, make_error

READ_BYTES = 1 << 18
MAX_FORM_BYTES = 64 << 20

# Names in the URL that are no settings.
RESERVED = frozenset(
    [
        "query",
        "query_id",
        "database",
        "default_format",
        "user",
        "password",
        "quota_key",
        "stacktrace",
        "role",
        "compress",
        "decompress",
        "buffer_size",
        "wait_end_of_query",
        "session_id",
        "session_timeout",
        "session_check",
        "close_session",
        "client_protocol_version",
        "http_method",
    ]
)
UNSUPPORTED = ("compress", "decompress", "session_id", "role")


@dataclass(frozen=True)
class Arguments:
    """The parameters of one request."""

    values: Mapping[str, str]

    @property
    def query_id(self) -> str:
        # It comes back in a header, which takes no line ends.
        given = "".join(filter(str.isprintable, self.values.get("query_id", "")))
        return given or str(uuid.uuid4())

    @property
    def params(self) -> dict[str, str]:
        return {name.removeprefix("param_"): value for name, value in self.values.items() if name.startswith("param_")}

    @property
    def settings(self) -> dict[str, str]:
        return {
            name: value for name, value in self.values.items() if name not in RESERVED and not name.startswith("param_")
        }

    @property
    def unsupported(self) -> str | None:
        return next((name for name in UNSUPPORTED if self.is_on(name)), None)

    def is_on(self, name: str) -> bool:
        return self.values.get(name, "") not in ("", "0", "false")


def url_arguments(target: str) -> tuple[str, dict[str, str]]:
    """Splits a request target into path and parameters."""
    parts = urlsplit(target)
    pairs = parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape")
    return parts.path, dict(pairs)


def body_pieces(headers: Message, source: BinaryIO) -> Iterator[bytes]:
    """The body as it comes in, with a length or in chunks."""
    if "chunked" in headers.get("Transfer-Encoding", "").lower():
        yield from _chunked_pieces(source)
        return
    left = int(headers.get("Content-Length") or 0)
    while left:
        piece = source.read1(min(left, READ_BYTES))
        if not piece:
            raise ConnectionError("the request ended early")
        left -= len(piece)
        yield piece


def _chunked_pieces(source: BinaryIO) -> Iterator[bytes]:
    while True:
        line = source.readline(1024)
        if not line:
            raise ConnectionError("the request ended early")
        left = int(line.split(b";")[0], 16)
        if left == 0:
            while source.readline(65536) not in (b"\r\n", b"\n", b""):
                pass
            return
        while left:
            piece = source.read1(min(left, READ_BYTES))
            if not piece:
                raise ConnectionError("the request ended early")
            left -= len(piece)
            yield piece
        source.readline(16)


def is_form(headers: Message) -> bool:
    return headers.get("Content-Type", "").lower().startswith("multipart/form-data")


def form_arguments(headers: Message, pieces: Iterator[bytes]) -> dict[str, str]:
    """The fields of a form, which is how the official Rust client sends parameters."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise ValueError("the form is too large")
    boundary = headers.get_boundary()
    if not boundary:
        raise ValueError("the form has no boundary")
    # Taken apart by hand, since values must come out byte by byte as they went in.
    _before, *parts, _after = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1"))
    return dict(_form_field(part) for part in parts)


def _form_field(part: bytes) -> tuple[str, str]:
    head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
    fields = email.parser.BytesParser().parsebytes(head)
    name = fields.get_param("name", header="Content-Disposition")
    if not name or fields.get_filename() is not None:
        raise ValueError("external tables are not supported by this front")
    return str(name), value.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class Accounts:
    """The one user that this front knows."""

    user: str
    password: str

    def authenticate(self, headers: Message, values: Mapping[str, str], version: str) -> str:
        """Returns the user's name, or raises what a server answers."""
        user, password = _credentials(headers, values, version)
        right = hmac.compare_digest(user.encode(), self.user.encode())
        right &= hmac.compare_digest(password.encode("utf-8", "surrogateescape"), self.password.encode())
        if not right:
            message = f"{user}: Authentication failed: password is incorrect, or there is no user with such name."
            raise _auth_error(message, version)
        return user


def _credentials(headers: Message, values: Mapping[str, str], version: str) -> tuple[str, str]:
    by_header = "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers
    basic = headers.get("Authorization", "")
    by_url = "user" in values or "password" in values
    if by_header + bool(basic) + by_url > 1:
        message = "Invalid authentication: it is not allowed to use several ways simultaneously"
        raise _auth_error(message, version)
    if by_header:
        return headers.get("X-ClickHouse-User", "default"), headers.get("X-ClickHouse-Key", "")
    if basic:
        return _basic_credentials(basic, version)
    return values.get("user", "default"), values.get("password", "")


def _basic_credentials(header: str, version: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        message = f"Invalid authentication: '{scheme}' HTTP Authorization scheme is not supported"
        raise _auth_error(message, version)
    try:
        decoded = base64.b64decode(encoded, validate=True).decode("utf-8", "surrogateescape")
    except binascii.Error:
        raise _auth_error("Invalid authentication: malformed credentials", version) from None
    user, _, password = decoded.partition(":")
    return user, password


def _auth_error(message: str, version: str) -> FrontError:
    return make_error(516, "AUTHENTICATION_FAILED", message, version)
