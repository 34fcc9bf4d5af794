"""How many episodes are played at a time. Invariant: on machines that are asked directly no more than there are machines, so that
no episode is counted as begun that waits for one.
"""

from __future__ import annotations

from collections.abc import Iterator

from deskhand.config.loop import LoopConfig
from deskhand.config.schema import MACHINE_BACKENDS, DesktopConfig, EvaluationConfig


def train_concurrency(loop: LoopConfig, desktop: DesktopConfig) -> int:
    """Training episodes at a time: `loop.max_concurrent_episodes`, but at most one a machine."""
    return (
        min(loop.max_concurrent_episodes, max(1, len(desktop.urls)))
        if desktop.backend in MACHINE_BACKENDS
        else loop.max_concurrent_episodes
    )


def eval_concurrency(evaluation: EvaluationConfig, loop: LoopConfig, desktop: DesktopConfig) -> int:
    """The same of held-out episodes."""
    return train_concurrency(
        loop.model_copy(update={"desktops": evaluation.max_concurrent_episodes or loop.max_concurrent_episodes}),
        desktop,
    )


def machine_notices(evaluation: EvaluationConfig, loop: LoopConfig, desktop: DesktopConfig) -> Iterator[str]:
    """What is to be known before an episode is played on machines that are asked directly: how many play at a time, and whether
    anything brings them back."""
    if desktop.backend not in MACHINE_BACKENDS:
        return
    count, asked = len(desktop.urls), max(loop.max_concurrent_episodes, evaluation.max_concurrent_episodes or 0)
    few = f"; loop.max_concurrent_episodes and evaluation.max_concurrent_episodes ask for {asked}, so {count} at a time play and others wait"
    yield f"machines: {count}{few if asked > count else ''}"
    if desktop.skip_reset and desktop.backend == "osworld":
        yield (
            "machines: nothing brings them back (desktop.skip_reset), so what an episode leaves is there for the next; "
            "desktop.reset_command names a command that does"
        )
