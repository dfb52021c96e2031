"""A hand-over between the thread that reads the engine and the thread that writes the socket."""

import threading
from collections import deque


class PieceQueue:
    """Bounded in bytes, so that a slow client holds back the engine and not the memory.

    One piece always fits, or a piece larger than the bound could never pass.
    """

    def __init__(self, max_bytes: int):
        self._max_bytes = max_bytes
        self._pieces: deque[tuple[object, int]] = deque()
        self._bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._abandoned = False
        self._changed = threading.Condition()

    def put(self, piece: object, num_bytes: int) -> bool:
        """Waits for room. Returns False once the reader has gone: the writer should stop."""
        with self._changed:
            while self._pieces and self._bytes + num_bytes > self._max_bytes and not self._abandoned:
                self._changed.wait()
            if self._abandoned:
                return False
            self._pieces.append((piece, num_bytes))
            self._bytes += num_bytes
            self._changed.notify_all()
            return True

    def end(self, error: BaseException | None = None) -> None:
        """Says that nothing more will come, and why if it was a failure."""
        with self._changed:
            self._ended = True
            self._error = error
            self._changed.notify_all()

    def abandon(self) -> None:
        """Says that the reader wants nothing more."""
        with self._changed:
            self._abandoned = True
            self._pieces.clear()
            self._changed.notify_all()

    def wait_end(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, timeout)

    def get(self, timeout: float) -> object | None:
        """The next piece; None at the end. Raises the writer's error, or TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._pieces or self._ended, timeout):
                raise TimeoutError
            if self._pieces:
                piece, num_bytes = self._pieces.popleft()
                self._bytes -= num_bytes
                self._changed.notify_all()
                return piece
            if self._error:
                raise self._error
            return None
