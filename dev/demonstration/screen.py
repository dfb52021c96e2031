"""What one sees of the demo: steps with their times, and a table at the end.

On a terminal the running step is one line that is redrawn; elsewhere there are plain lines, so that
a log of continuous integration stays readable. Steps go to stderr and the table to stdout.
"""

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

REDRAW_SECONDS = 0.15
# Between plain lines of one step.
QUIET_SECONDS = 5.0
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
COLORS = {"green": "32", "red": "31", "dim": "2", "bold": "1"}


class Screen:
    """Shows one step at a time."""

    def __init__(self, stream: TextIO = sys.stderr):
        self._stream = stream
        self._is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._title = ""
        self._detail = ""
        self._shown = 0.0
        self._is_hidden = False
        self._is_spoiled = False
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")

    @property
    def is_live(self) -> bool:
        """Whether there is a line that is redrawn."""
        return self._is_live

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Shows a step from its start to its end, which is a failure when it raises."""
        began = time.monotonic()
        self._title, self._detail, self._shown = title, "", began
        self._is_spoiled = False
        if not self._is_live:
            self._line(f"{clock(self.elapsed)}  {title}")
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(done,), daemon=True)
        if self._is_live:
            ticker.start()
        try:
            yield
        except BaseException:
            self._finish(done, ticker, paint("✗", "red", self._stream), began)
            raise
        mark = ("✗", "red") if self._is_spoiled else ("✓", "green")
        self._finish(done, ticker, paint(*mark, self._stream), began)

    def spoil(self, detail: str) -> None:
        """Says that the step comes to its end, but not to a good one."""
        self._is_spoiled = True
        self.detail(detail)

    def detail(self, text: str) -> None:
        """Says how far the step is."""
        with self._lock:
            is_news = text != self._detail
            self._detail = text
        now = time.monotonic()
        if not self._is_live and is_news and now - self._shown >= QUIET_SECONDS:
            self._shown = now
            self._line(f"{clock(self.elapsed)}    {text}")

    @contextlib.contextmanager
    def tools_report_here(self) -> Iterator[None]:
        """Turns what our own tools say on stderr into details of the step."""
        with contextlib.redirect_stderr(_Details(self)):
            yield

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Leaves the line to a program that draws there itself."""
        with self._lock:
            self._is_hidden = True
            self._clear()
        try:
            yield
        finally:
            with self._lock:
                self._is_hidden = False

    def say(self, text: str) -> None:
        """Writes whole lines."""
        with self._lock:
            self._clear()
        self._line(text)

    def _finish(self, done: threading.Event, ticker: threading.Thread, mark: str, began: float) -> None:
        done.set()
        if self._is_live:
            ticker.join()
        seconds = f"{time.monotonic() - began:.1f} s"
        tail = f": {self._detail}" if self._detail else ""
        if self._is_live:
            with self._lock:
                self._clear()
            shade = paint(f"{tail}  {seconds}", "dim", self._stream)
            self._line(f"{mark} {clock(self.elapsed)}  {self._title}{shade}")
        else:
            self._line(f"{clock(self.elapsed)}  {mark} {seconds}{tail}")

    def _tick(self, done: threading.Event) -> None:
        turn = 0
        while not done.wait(REDRAW_SECONDS):
            turn += 1
            with self._lock:
                if self._is_hidden:
                    continue
                tail = f": {self._detail}" if self._detail else ""
                mark = SPINNER[turn % len(SPINNER)]
                text = f"{mark} {clock(self.elapsed)}  {self._title}{tail}"
                self._stream.write(f"\r\x1b[K{text[: _width(self._stream) - 1]}")
                self._stream.flush()

    def _clear(self) -> None:
        if self._is_live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _line(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class _Details(io.TextIOBase):
    """A stderr whose last line is the step's detail."""

    def __init__(self, screen: Screen):
        self._screen = screen

    def write(self, text: str) -> int:
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            self._screen.detail(lines[-1].strip())
        return len(text)


def paint(text: str, color: str, stream: TextIO) -> str:
    """Colors text for a terminal, unless nobody wants colors (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    if not text or plain or not stream.isatty():
        return text
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m"


def clock(seconds: float) -> str:
    """Minutes and seconds since the start."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def megabytes(count: float) -> str:
    """Bytes as people read them, in powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def table(cells: list[list[str]]) -> list[str]:
    """Aligned lines: the first and the last column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    last = len(widths) - 1

    def line(row: list[str]) -> str:
        aligned = [text.ljust(widths[n]) if n in (0, last) else text.rjust(widths[n]) for n, text in enumerate(row)]
        return "  ".join(aligned).rstrip()

    return [line(row) for row in cells]


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
