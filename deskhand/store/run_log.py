"""The log file of a run, `log.jsonl`: one JSON object per line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import structlog


class _LogFile:
    """Drops lines that cannot be written: a full disk must not end what only wants to log."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._file.write(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Nothing is buffered."""


def log_to_run(folder: Path) -> None:
    """Send all log lines of this process to the run's log file. Raises `OSError` if it cannot be opened."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=_LogFile(folder / "log.jsonl")),  # pyright: ignore[reportArgumentType]
    )
