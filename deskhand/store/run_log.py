"""The log file of a run, `log.jsonl`: one JSON object per line."""

from __future__ import annotations

from pathlib import Path

import structlog


def log_to_run(folder: Path) -> None:
    """Send all log lines of this process to the run's log file."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(
            file=(folder / "log.jsonl").open("a", encoding="utf-8", buffering=1)
        ),
    )
