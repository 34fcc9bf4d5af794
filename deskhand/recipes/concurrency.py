"""How many episodes are played at a time. Invariant: on machines that are asked directly no more than there are machines, so that
no episode is counted as begun that waits for one.
"""

from __future__ import annotations

from collections.abc import Iterator

from deskhand.config.load import Config
from deskhand.config.schema import MACHINE_BACKENDS


def train_concurrency(config: Config) -> int:
    """Training episodes at a time: `loop.max_concurrent_episodes`, but at most one a machine."""
    return _at_most_the_machines(config, config.loop.max_concurrent_episodes)


def eval_concurrency(config: Config) -> int:
    """The same of held-out episodes."""
    return _at_most_the_machines(
        config, config.evaluation.max_concurrent_episodes or config.loop.max_concurrent_episodes
    )


def _at_most_the_machines(config: Config, wanted: int) -> int:
    return min(wanted, max(1, len(config.desktop.urls))) if config.desktop.backend in MACHINE_BACKENDS else wanted


def machine_notices(config: Config) -> Iterator[str]:
    """What is to be known before an episode is played on machines that are asked directly: how many play at a time, and whether
    anything brings them back."""
    desktop = config.desktop
    if desktop.backend not in MACHINE_BACKENDS:
        return
    count, asked = (
        len(desktop.urls),
        max(config.loop.max_concurrent_episodes, config.evaluation.max_concurrent_episodes or 0),
    )
    few = (
        f"; loop.max_concurrent_episodes and evaluation.max_concurrent_episodes ask for {asked}, so {count} at a time play and others wait"
        if asked > count
        else ""
    )
    yield f"machines: {count}{few}"
    if desktop.skip_reset and desktop.backend == "osworld":
        yield (
            "machines: nothing brings them back (desktop.skip_reset), so what an episode leaves is there for the next; "
            "desktop.reset_command names a command that does"
        )
