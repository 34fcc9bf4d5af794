"""Measure the difficulty of families (`tasks.difficulty`): play scripted policies on local desktops, or read a run.

Used by `deskhand tasks measure`; start with `measure_families` and `measured_in_run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from deskhand.desktop.applications.install import missing
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import ConfigError, GuestFailure, InfrastructureError
from deskhand.rollout.episode import desktop_spec
from deskhand.store.run import DEMONSTRATIONS, TRAIN, Run
from deskhand.tasks.difficulty import SLIP_SHARE, Count, Measured, policies
from deskhand.tasks.family_checks import Policy, play
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import Task, seed_for


async def measure_families(
    names: Iterable[str],
    variants: int,
    selected: Iterable[str],
    store: Callable[[Measured], None],
    share: float = SLIP_SHARE,
    concurrency: int = 1,
) -> list[str]:
    """Play each selected policy on the first variants of each family's training split, `slips` with this share of ops
    that go wrong, up to `concurrency` families at a time; return one line for each episode without a score.

    `store` gets the counts of each family as soon as they are complete.
    """
    unscored, chosen = list[str](), {name: policy for name, policy in policies(share).items() if name in set(selected)}
    remaining = iter([*names])

    async def measure_remaining() -> None:
        for name in remaining:
            if lacking := missing(list(family_registry.applications_of(name))):
                unscored.append(f"{name}: skipped, {' '.join(lacking)} not installed")
                continue
            counts = dict.fromkeys(chosen, Count())
            for seed in range(variants):
                task = family_registry.make_task(name, seed_for("train", seed))
                for policy in counts:
                    value = await _played(task, chosen[policy])
                    if isinstance(value, str):
                        unscored.append(f"{task.id}: {policy} has no score: {value}")
                    else:
                        counts[policy] += Count(int(value >= 1.0), 1)
            store({name: {policy: count for policy, count in counts.items() if count.episodes}})

    await asyncio.gather(*(measure_remaining() for _ in range(concurrency)))
    return unscored


async def _played(task: Task, policy: Policy) -> float | str:
    """Return the score of one episode on a new desktop, or why there is none."""
    desktop = LocalDesktop()
    try:
        await desktop.reset(desktop_spec(task))
        played = await play(task, desktop, policy)
        return played.value if played.value is not None else str(played.outcome)
    except GuestFailure:
        return 0.0  # the policy has ended a program
    except InfrastructureError as error:
        return str(error)
    finally:
        await desktop.close()


def measured_in_run(folder: Path) -> Measured:
    """Return the counts of a run's evaluation episodes by family and name of the evaluation. Raises `ConfigError` if
    it has none."""
    run = Run.open(folder, read_only=True)
    try:
        rows = run.rows(
            "SELECT family, phase, SUM(value >= 1), COUNT(*) FROM episodes "
            "WHERE phase NOT IN (?, ?) AND value IS NOT NULL AND state != 'errored' GROUP BY 1, 2",
            (TRAIN, DEMONSTRATIONS),
        )
    finally:
        run.close()
    if not rows:
        raise ConfigError(f"{folder}: has no scored evaluation episode; evaluate a policy with deskhand eval")
    measured: Measured = {}
    for family, phase, solved, episodes in rows:
        measured.setdefault(family, {})[phase] = Count(solved, episodes)
    return measured
