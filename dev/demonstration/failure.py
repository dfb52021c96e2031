"""The one way in which the demo fails: with a sentence, and a log that tells more."""

from pathlib import Path


class DemoError(Exception):
    """What went wrong."""

    def __init__(self, message: str, log: Path | None = None):
        super().__init__(message)
        self.log = log
