"""Measured difficulty of families: the success of scripted policies of graded skill, stored with the suites.

`deskhand tasks measure` plays `POLICIES`, or reads the episodes of a run, and stores the counts; `deskhand tasks stats`
shows them. The policies, from the least skilled:

- `noop` stops at once,
- `random` clicks at random places,
- `one_step` takes the oracle's first step and stops,
- `slips` is the oracle, but a tenth of its ops go wrong: a click misses its target, a text gets another
  character, a key is not pressed. Its success falls with the number of ops that must be right, and rises where a slip
  does no harm,
- `oracle` solves every variant.

A stored count is of the variants of the training split.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from deskhand.actions.ops import Click, Done, Drag, Key, Op, Point, Type, screen_px, to_screen_px
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.audit_agents import random_clicks
from deskhand.tasks.cheats.oracle_variants import as_far_as_possible
from deskhand.tasks.family_checks import Policy, oracle, stops_early
from deskhand.tasks.task import Task

STORED = Path(__file__).parent / "suites" / "measured_difficulty.json"
SLIP_SHARE = 0.1
MISS_PX = 40
"""How far a click that slips lands from its place, in both directions: beyond most targets, within every screen."""
NEXT_STEP_S = 20.0
"""After a slip, an oracle that waits longer for what does not appear has ended."""
POLICY_NAMES = ("noop", "random", "one_step", "slips", "oracle")


@dataclass(frozen=True)
class Count:
    """Episodes of one policy on one family that were scored, and those that were solved."""

    solved: int = 0
    episodes: int = 0

    @property
    def share(self) -> float:
        return self.solved / self.episodes

    def __add__(self, other: Count) -> Count:
        return Count(self.solved + other.solved, self.episodes + other.episodes)


Measured = dict[str, dict[str, Count]]
"""Counts by family and policy."""


def policies(share: float = SLIP_SHARE) -> dict[str, Policy]:
    """Return the policies by name; `share` is that of the ops of `slips` that go wrong."""
    found = {"noop": stops_early(0), "random": _random, "one_step": stops_early(1), "slips": with_slips(share)}
    return found | {"oracle": oracle}


async def _random(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    async for ops in random_clicks(task, desktop, []):
        yield ops


def with_slips(share: float) -> Policy:
    """Return the oracle of which this share of ops goes wrong: always the same ops of a task."""

    async def policy(task: Task, desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
        rng = random.Random(f"slips:{task.id}")
        steps, has_slipped = as_far_as_possible(task.oracle(desktop)), False
        while True:
            try:
                async with asyncio.timeout(NEXT_STEP_S if has_slipped else None):
                    ops = await anext(steps, None)
            except TimeoutError:
                ops = [Done()]
            if ops is None:
                return
            acted = [slipped(op, task, rng) if rng.random() < share else op for op in ops]
            has_slipped = has_slipped or acted != ops
            if kept := [op for op in acted if op is not None]:
                yield kept
            if any(isinstance(op, Done) for op in ops):
                return

    return policy


def slipped(op: Op, task: Task, rng: random.Random) -> Op | None:
    """Return what an op that goes wrong does; None: nothing. Ops that only wait or end the episode stay."""
    if isinstance(op, Click) and op.point is not None:
        return replace(op, point=_missed(op.point, task, rng))
    if isinstance(op, Drag):
        return replace(op, path=(*op.path[:-1], _missed(op.path[-1], task, rng)))
    if isinstance(op, Type):
        at = rng.randrange(len(op.text.rstrip()) + 1)
        return Type(f"{op.text[:at]}{rng.choice('aeiou')}{op.text[at:]}")
    return None if isinstance(op, Key) else op


def _missed(point: Point, task: Task, rng: random.Random) -> Point:
    size = task.width, task.height
    across, down = (
        rng.choice([place for place in (at - MISS_PX, at + MISS_PX) if 0 <= place < limit])
        for at, limit in zip(to_screen_px(point, *size), size, strict=True)
    )
    return Point(across, down, screen_px(*size))


def load_measured(path: Path = STORED) -> Measured:
    """Return the stored counts; empty without a file. Raises `ConfigError` if the file is invalid."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            family: {policy: Count(**count) for policy, count in counts.items()} for family, counts in found.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: is not a file of measured difficulty ({error}); write it with --out") from None


def store_measured(measured: Measured, path: Path = STORED) -> None:
    """Replace the counts of the policies and families in `measured`; all others are kept."""
    stored = load_measured(path)
    for family, counts in measured.items():
        stored[family] = stored.get(family, {}) | counts
    lines = [
        f" {json.dumps(family)}: {json.dumps({name: asdict(count) for name, count in sorted(stored[family].items())})}"
        for family in sorted(stored)
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def count_measured(families: Iterable[str], measured: Mapping[str, Mapping[str, Count]]) -> list[tuple[str, int]]:
    """Return rows of what was measured and its number of families."""
    found = [{name: count for name, count in measured.get(family, {}).items() if count.episodes} for family in families]
    slips = [counts["slips"].share for counts in found if "slips" in counts]
    rows = [
        ("noop solves some", sum("noop" in counts and counts["noop"].solved > 0 for counts in found)),
        ("random solves some", sum("random" in counts and counts["random"].solved > 0 for counts in found)),
        ("one_step solves some", sum("one_step" in counts and counts["one_step"].solved > 0 for counts in found)),
        ("slips solves 0.75 or more", sum(share >= 0.75 for share in slips)),
        ("slips solves 0.5 to 0.75", sum(0.5 <= share < 0.75 for share in slips)),
        ("slips solves less than 0.5", sum(share < 0.5 for share in slips)),
        ("slips is not measured", len(found) - len(slips)),
        ("oracle fails some", sum("oracle" in counts and counts["oracle"].share < 1 for counts in found)),
    ]
    return [row for row in rows if row[1]]
