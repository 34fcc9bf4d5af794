"""Effects of a kill on episodes and processes.

An episode that used its desktop after the kill must be errored (infrastructure), or scored 0 for the broken desktop if
its agent had acted and the victim was a guest, because only guests kill guests. No other episode may be. An episode
evaluated before the kill keeps its score and is counted as late.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deskhand.desktop.base import StageableDesktop
from deskhand.desktop.local import processes
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.tasks.outcome import Errored, Outcome

GONE_WITHIN_S = 60.0
NOTICED_WITHIN_S = 0.1


class Observed:
    """Desktop that records the time of its last call."""

    def __init__(self, desktop: StageableDesktop) -> None:
        self._desktop = desktop
        self.called_at = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._desktop, name)
        if not asyncio.iscoroutinefunction(found) or name == "close":
            return found

        async def noted(*arguments: Any, **options: Any) -> Any:
            self.called_at = time.monotonic()
            return await found(*arguments, **options)

        return noted


@dataclass
class Tally:
    """Totals of all rounds."""

    rounds: Counter[str] = field(default_factory=Counter)
    affected: int = 0
    late: int = 0
    wrong: list[str] = field(default_factory=list)
    """Episodes that did not end as they must, in words."""
    orphans: int = 0
    slowest_s: float = 0.0
    """Until nothing of a killed desktop was left."""
    leases: int = 0
    unfenced: int = 0


def judge(
    results: Sequence[EpisodeResult], hit: Iterable[tuple[Observed, str]], at: float, victim: str, tally: Tally
) -> None:
    """Check how each episode ended; `hit` maps killed desktops to their episodes."""
    called = {episode: observed.called_at for observed, episode in hit}
    for result in results:
        was_hit = result.episode_id in called
        noticed = was_hit and called[result.episode_id] > at + NOTICED_WITHIN_S
        outage = _lost_its_desktop(result.outcome, victim)
        tally.affected += was_hit and outage
        tally.late += was_hit and not outage and not noticed
        if (noticed or not was_hit) and outage != was_hit:
            tally.wrong.append(f"{result.episode_id} ({victim}): {result.outcome}")


def _lost_its_desktop(outcome: Outcome, victim: str) -> bool:
    if isinstance(outcome, Errored):
        return outcome.cause == "infrastructure"
    return victim != "x server" and any(finding.clause == "the desktop" for finding in outcome.failed)


def gone(pids: list[int], since: float, tally: Tally) -> None:
    """Wait until processes have exited."""
    left = pids
    while left and time.monotonic() - since < GONE_WITHIN_S:
        time.sleep(0.01)
        left = [pid for pid in left if processes.state(pid) not in ("", "Z")]
    tally.orphans += len(left)
    tally.slowest_s = max(tally.slowest_s, time.monotonic() - since)
