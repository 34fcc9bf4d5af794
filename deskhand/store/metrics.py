"""Metric trackers: metrics.jsonl, TensorBoard event files and Weights & Biases.

Used by `store.run`. TensorBoard files are written whenever the `tensorboard` package is installed; Weights & Biases is
enabled by `tracking.wandb`. Failing trackers are logged and never stop a run.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import structlog

from deskhand.errors import ConfigError

log = structlog.get_logger()


class Tracker(Protocol):
    """Receiver of the metrics of every step."""

    def add(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class EventFile:
    """TensorBoard event file; writes nothing if the `tensorboard` package is not installed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._installed = importlib.util.find_spec("tensorboard") is not None

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write all numbers in `metrics`; nested mappings become `outer/inner`."""
        if not self._installed:
            return
        event: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summary: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        if self._writer is None:
            writer: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            self._writer = writer.EventFileWriter(str(self._folder))
        values = [summary.Summary.Value(tag=tag, simple_value=value) for tag, value in _scalars("", metrics)]
        self._writer.add_event(event.Event(wall_time=time.time(), step=step, summary=summary.Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbRun:
    """Weights & Biases run. A run directory maps to one W&B run, also after a resume.

    Credentials are the package's own: `wandb login`, WANDB_API_KEY or WANDB_MODE=offline.
    Raises `ConfigError` if the package is not installed or `wandb.init` fails.
    """

    def __init__(self, folder: Path, project: str, settings: Mapping[str, Any]) -> None:
        try:
            library: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise ConfigError("tracking.wandb: wandb is not installed; pip install 'deskhand[wandb]'") from error
        name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        try:
            self._run = library.init(
                project=project, id=name, name=folder.name, dir=str(folder), resume="allow", config=dict(settings)
            )
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            raise ConfigError(f"tracking.wandb: {why}; run wandb login or set WANDB_MODE=offline") from error

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send all numbers in `metrics`; failures are only logged."""
        try:
            self._run.log(dict(_scalars("", metrics)), step=step)
        except Exception as error:
            log.warning("wandb.failed", step=step, error=" ".join(str(error).split())[:200])

    def close(self) -> None:
        self._run.finish()


def _scalars(prefix: str, metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            found += _scalars(f"{prefix}{key}/", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append((prefix + key, float(value)))
    return found
