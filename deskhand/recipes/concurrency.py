"""Concurrency limits: `max_concurrent_episodes`, capped at one episode per machine."""

from __future__ import annotations

from collections.abc import Iterator

from deskhand.config.loop import LoopConfig
from deskhand.config.schema import MACHINE_BACKENDS, DesktopConfig, EvaluationConfig


def train_concurrency(loop: LoopConfig, desktop: DesktopConfig) -> int:
    """Return the number of concurrent training episodes."""
    return (
        min(loop.max_concurrent_episodes, max(1, len(desktop.urls)))
        if desktop.backend in MACHINE_BACKENDS
        else loop.max_concurrent_episodes
    )


def eval_concurrency(evaluation: EvaluationConfig, loop: LoopConfig, desktop: DesktopConfig) -> int:
    """Return the number of concurrent held-out episodes."""
    return train_concurrency(
        loop.model_copy(
            update={"max_concurrent_episodes": evaluation.max_concurrent_episodes or loop.max_concurrent_episodes}
        ),
        desktop,
    )


def machine_notices(evaluation: EvaluationConfig, loop: LoopConfig, desktop: DesktopConfig) -> Iterator[str]:
    """Lines to print before episodes run on machines: concurrency, and whether the machines are reset."""
    if desktop.backend not in MACHINE_BACKENDS:
        return
    count, requested = len(desktop.urls), max(loop.max_concurrent_episodes, evaluation.max_concurrent_episodes or 0)
    capped = f"; episodes are limited to {count} at a time, max_concurrent_episodes is {requested}"
    yield f"machines: {count}{capped if requested > count else ''}"
    if desktop.skip_reset and desktop.backend == "osworld":
        yield (
            "machines: they are not reset (desktop.skip_reset), so changes of an episode remain; set "
            "desktop.reset_command to reset them"
        )
