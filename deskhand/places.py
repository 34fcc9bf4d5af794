"""How many episodes are played at a time. Invariant: on machines that are asked directly no more than there are machines, so that
no episode is counted as begun that waits for one.
"""

from __future__ import annotations

from collections.abc import Iterator

from deskhand.config import Config
from deskhand.sections import MACHINES


def training_places(config: Config) -> int:
    """Training episodes at a time: `loop.desktops`, but at most one a machine."""
    return _at_most_the_machines(config, config.loop.desktops)


def evaluation_places(config: Config) -> int:
    """The same of held-out episodes."""
    return _at_most_the_machines(config, config.evaluation.desktops or config.loop.desktops)


def _at_most_the_machines(config: Config, wanted: int) -> int:
    return min(wanted, max(1, len(config.desktop.addresses))) if config.desktop.kind in MACHINES else wanted


def machine_lines(config: Config) -> Iterator[str]:
    """What is to be known before an episode is played on machines that are asked directly: how many play at a time, and whether
    anything brings them back."""
    desktop = config.desktop
    if desktop.kind not in MACHINES:
        return
    count, asked = len(desktop.addresses), max(config.loop.desktops, config.evaluation.desktops or 0)
    few = (
        f"; loop.desktops and evaluation.desktops ask for {asked}, so {count} at a time play and others wait"
        if asked > count
        else ""
    )
    yield f"machines: {count}{few}"
    if desktop.keep_state and desktop.kind == "osworld":
        yield (
            "machines: nothing brings them back (desktop.keep_state), so what an episode leaves is there for the next; "
            "desktop.revert names a command that does"
        )
