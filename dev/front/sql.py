"""The little the front must understand of a query's text: enough to route it, not to parse it."""

import re
from dataclasses import dataclass

# Literals, quoted names and comments: their insides must not be taken for keywords.
_OPAQUE = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_FORMAT_AT_END = re.compile(r"\bFORMAT\s+(\w+)\s*(?:SETTINGS\b[^;]*)?[;\s]*$", re.IGNORECASE)
_INSERT = re.compile(r"\s*INSERT\s+(?:INTO\s+)?", re.IGNORECASE)
_INSERT_SOURCE = re.compile(
    r"\b(?:(?P<query>SELECT|WITH|WATCH)\b|FORMAT\s+(?P<format>\w+)|(?P<values>VALUES)\b)",
    re.IGNORECASE,
)
_KILL = re.compile(
    r"\s*KILL\s+QUERY\s+WHERE\s+(?P<where>.+?)"
    r"(?:\s+(?P<mode>SYNC|ASYNC|TEST))?(?:\s+FORMAT\s+(?P<format>\w+))?[;\s]*$",
    re.IGNORECASE | re.DOTALL,
)
_PROCESSES = re.compile(r"\bsystem\s*\.\s*processes\b", re.IGNORECASE)


@dataclass(frozen=True)
class Insert:
    """An INSERT whose rows follow its text."""

    statement: str
    format: str
    data_start: int


@dataclass(frozen=True)
class Kill:
    """A KILL QUERY statement."""

    where: str
    mode: str
    format: str | None


def mask(text: str) -> str:
    """The same text, same length, with everything opaque turned into underscores or blanks."""

    def blank(match: re.Match) -> str:
        filler = " " if match[0][:2] in ("--", "/*") else "_"
        return filler * len(match[0])

    return _OPAQUE.sub(blank, text)


def format_clause(text: str) -> str | None:
    """The name in the query's own FORMAT clause."""
    found = _FORMAT_AT_END.search(mask(text))
    return found[1] if found else None


def parse_insert(text: str) -> Insert | None:
    """Splits an INSERT from its rows; None for everything else, INSERT ... SELECT included."""
    masked = mask(text)
    if not _INSERT.match(masked):
        return None
    source = next((each for each in _INSERT_SOURCE.finditer(masked) if _is_outside(masked, each)), None)
    if not source or source["query"]:
        return None
    if source["values"]:
        return Insert(text[: source.start()], "Values", source.end())
    return Insert(text[: source.start()], source["format"], _skip_line_end(text, source.end()))


def _is_outside(masked: str, match: re.Match) -> bool:
    """Whether a keyword stands outside of brackets: a column may be called `values`."""
    return masked.count("(", 0, match.start()) == masked.count(")", 0, match.start())


def _skip_line_end(text: str, position: int) -> int:
    """Rows start after the blanks and the one line end that follow the format's name."""
    while position < len(text) and text[position] in " \t\r":
        position += 1
    return position + 1 if text[position : position + 1] == "\n" else position


def parse_kill(text: str) -> Kill | None:
    """Takes a KILL QUERY statement apart."""
    masked = mask(text)
    found = _KILL.match(masked)
    if not found:
        return None
    where = text[found.start("where") : found.end("where")]
    return Kill(where, (found["mode"] or "ASYNC").upper(), found["format"])


def replace_processes(text: str, replacement: str) -> str:
    """Puts a subquery in the place of `system.processes`."""
    pieces = []
    position = 0
    for found in _PROCESSES.finditer(mask(text)):
        pieces += [text[position : found.start()], replacement]
        position = found.end()
    return "".join([*pieces, text[position:]])


def mentions_processes(text: str) -> bool:
    return "processes" in text.lower() and bool(_PROCESSES.search(mask(text)))


def quote(value: str) -> str:
    """A string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\0", "\\0")
    return f"'{escaped}'"
