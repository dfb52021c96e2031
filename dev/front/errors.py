"""Error texts, status codes and the ways a server reports a failure in the middle of a response."""

import re
import secrets
import string

EXCEPTION_MARKER = b"__exception__"
TAG_LENGTH = 16
MAX_EXCEPTION_BYTES = 16 * 1024

# How a failure after the first byte is written, by server version.
FORM_TAGGED = "tagged"  # 25.11 and later: a frame with the tag of the response's header
FORM_MARKER = "marker"  # before that: the marker, then the message; the connection breaks
FORM_BARE = "bare"  # before 24.11: only the message, and then a clean end of the response
EXCEPTION_FORMS = (FORM_TAGGED, FORM_MARKER, FORM_BARE)

UNKNOWN_STATUS = 500

# The server's own table, by ClickHouse error code.
STATUS_BY_CODE = {
    194: 401,  # REQUIRED_PASSWORD
    192: 403,  # UNKNOWN_USER
    193: 403,  # WRONG_PASSWORD
    497: 403,  # ACCESS_DENIED
    512: 403,  # SET_NON_GRANTED_ROLE
    516: 403,  # AUTHENTICATION_FAILED
    36: 400,  # BAD_ARGUMENTS
    427: 400,  # CANNOT_COMPILE_REGEXP
    6: 400,  # CANNOT_PARSE_TEXT
    25: 400,  # CANNOT_PARSE_ESCAPE_SEQUENCE
    26: 400,  # CANNOT_PARSE_QUOTED_STRING
    38: 400,  # CANNOT_PARSE_DATE
    41: 400,  # CANNOT_PARSE_DATETIME
    72: 400,  # CANNOT_PARSE_NUMBER
    246: 400,  # CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING
    675: 400,  # CANNOT_PARSE_IPV4
    676: 400,  # CANNOT_PARSE_IPV6
    27: 400,  # CANNOT_PARSE_INPUT_ASSERTION_FAILED
    376: 400,  # CANNOT_PARSE_UUID
    15: 400,  # DUPLICATE_COLUMN
    44: 400,  # ILLEGAL_COLUMN
    8: 400,  # THERE_IS_NO_COLUMN
    90: 400,  # UNKNOWN_ELEMENT_IN_AST
    105: 400,  # UNKNOWN_TYPE_OF_AST_NODE
    167: 400,  # TOO_DEEP_AST
    168: 400,  # TOO_BIG_AST
    62: 400,  # SYNTAX_ERROR
    117: 400,  # INCORRECT_DATA
    53: 400,  # TYPE_MISMATCH
    321: 400,  # VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
    60: 404,  # UNKNOWN_TABLE
    46: 404,  # UNKNOWN_FUNCTION
    47: 404,  # UNKNOWN_IDENTIFIER
    50: 404,  # UNKNOWN_TYPE
    56: 404,  # UNKNOWN_STORAGE
    81: 404,  # UNKNOWN_DATABASE
    115: 404,  # UNKNOWN_SETTING
    63: 404,  # UNKNOWN_AGGREGATE_FUNCTION
    73: 404,  # UNKNOWN_FORMAT
    336: 404,  # UNKNOWN_DATABASE_ENGINE
    78: 404,  # UNKNOWN_TYPE_OF_QUERY
    511: 404,  # UNKNOWN_ROLE
    223: 400,  # UNEXPECTED_AST_STRUCTURE
    229: 413,  # QUERY_IS_TOO_LARGE
    48: 501,  # NOT_IMPLEMENTED
    209: 503,  # SOCKET_TIMEOUT
    76: 503,  # CANNOT_OPEN_FILE
    439: 503,  # CANNOT_SCHEDULE_TASK
    381: 411,  # HTTP_LENGTH_REQUIRED
    159: 408,  # TIMEOUT_EXCEEDED
}

_CODE = re.compile(r"Code: (\d+)\. DB::")


class FrontError(Exception):
    """A failure with the number and the text that a server would send."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def status(self) -> int:
        return STATUS_BY_CODE.get(self.code, UNKNOWN_STATUS)


def make_error(code: int, name: str, message: str, version: str) -> FrontError:
    """An error that the front itself finds, in the server's words."""
    return FrontError(
        code,
        f"Code: {code}. DB::Exception: {message} ({name}) (version {version} (official build))",
    )


def engine_error(error: BaseException, version: str) -> FrontError:
    """Turns what the engine's bindings raise into what a server would send."""
    text = str(error)
    start = _CODE.search(text)
    if not start:
        return make_error(1002, "UNKNOWN_EXCEPTION", text, version)
    text = text[start.start() :].rstrip()
    own_suffix = f" (version {version})"
    if text.endswith(own_suffix):
        text = text[: -len(own_suffix)]
    return FrontError(int(start[1]), f"{text} (version {version} (official build))")


def new_tag() -> str:
    """A random tag, so that no payload can imitate the frame."""
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(TAG_LENGTH))


def exception_block(error: FrontError, tag: str, form: str) -> bytes:
    """The bytes that follow the data when a query fails after the first byte."""
    message = error.text.encode("utf-8", "surrogateescape")
    if form == FORM_BARE:
        return message + b"\n"
    if form == FORM_MARKER:
        return EXCEPTION_MARKER + b"\r\n" + message + b"\n"
    frame = len(b"\r\n" * 5) + 2 * len(EXCEPTION_MARKER) + 2 * TAG_LENGTH + len(b" ") + 8
    message = message[: MAX_EXCEPTION_BYTES - frame]
    if not message.endswith(b"\n"):
        message += b"\n"
    tag_bytes = tag.encode()
    return b"".join(
        (
            b"\r\n",
            EXCEPTION_MARKER,
            b"\r\n",
            tag_bytes,
            b"\r\n",
            message,
            b"%d %s\r\n" % (len(message), tag_bytes),
            EXCEPTION_MARKER,
            b"\r\n",
        )
    )
