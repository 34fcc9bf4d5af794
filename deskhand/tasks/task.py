"""What a task is: say what to do, stage it, judge the end state. Invariant: a task is a pure function of (family, seed), and
training seeds and held-out seeds never meet.

A *family* generates unlimited seeded variants. `oracle` solves a task by ops alone, as a person would, from what the
host can see; it is used for the warm start, for tests and for `targets` (where a correct first click lands).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deskhand import registry
from deskhand.actions.ops import Op
from deskhand.errors import ConfigError
from deskhand.tasks.outcome import Finding

Split = Literal["train", "held_out"]
Difficulty = Literal["easy", "medium", "hard"]
HELD_OUT_START = 1_000_000_000
"""Seeds below are for training, from here on for evaluation."""

StagedDesktopLike = Any  # deskhand.desktop.base.StagedDesktop; tasks do not import desktop (DESIGN, section 2)


def split_of(seed: int) -> Split:
    """The split that a seed belongs to."""
    return "held_out" if seed >= HELD_OUT_START else "train"


def seed_for(split: Split, index: int) -> int:
    """The seed of the `index`-th variant of a split. Raises `ConfigError` when it would leave the split."""
    if not 0 <= index < HELD_OUT_START:
        raise ConfigError(f"variant index {index} is outside 0..{HELD_OUT_START - 1}")
    return index + (HELD_OUT_START if split == "held_out" else 0)


@dataclass(frozen=True, slots=True)
class Rect:
    """Half-open screen rectangle in pixels."""

    left: int
    top: int
    right: int
    bottom: int

    def contains(self, x: int, y: int) -> bool:
        return self.left <= x < self.right and self.top <= y < self.bottom

    @property
    def center(self) -> tuple[int, int]:
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One judged fact: `value` in [0, 1], whether a live guest process had to be believed, and its clauses one by one."""

    value: float
    detail: str = ""
    untrusted_source: bool = False
    findings: tuple[Finding, ...] = ()
    no_retry: bool = False
    """Whether asking again would be another opinion and no later look, so that the judge must not."""


CheckFunction = Callable[[StagedDesktopLike], Awaitable[CheckResult]]


@dataclass(frozen=True, slots=True)
class Milestone:
    """A stage on the way; `check` runs after every step, so it must be cheap and must not disturb the desktop."""

    name: str
    weight: float
    check: CheckFunction
    after: tuple[str, ...] = ()
    """Milestones before this one in the task that must have been fully reached before it counts."""


FileContents = Mapping[str, bytes]
"""Files of a home by path."""


@dataclass(frozen=True)
class ExampleEndStates:
    """End states as files, for the audit. In each of them a path that only another one of the same task names is not there."""

    negatives: dict[str, FileContents]
    """What is nearly asked for, by what is wrong with it; none of it may be paid anything."""
    positive: FileContents | None = None
    """What is asked for; None where files alone do not say it."""


async def _no_oracle(desktop: StagedDesktopLike) -> AsyncIterator[list[Op]]:
    raise ConfigError("the task has no oracle; give it one, or choose another policy")
    yield []


async def _no_targets(desktop: StagedDesktopLike) -> tuple[Rect | None, list[Rect]]:
    return None, []


@dataclass(frozen=True, kw_only=True)
class Task:
    """One variant of a family, ready to run. `task_family` fills in `id`, `family`, `suite` and `seed`.

    `setup(desktop)` stages the desktop after `reset`. `check(desktop)` judges the end state. `oracle(desktop)` yields lists of
    ops, one list per step, the last containing `Done()`. `targets(desktop)` gives the rectangle where a correct first click lands,
    and the rectangles of the other things on the screen that could be taken for it (for noisy demonstrations), both read
    from the start state.
    """

    id: str = ""
    family: str = ""
    suite: str = ""
    seed: int = 0
    instruction: str
    width: int = 1280
    height: int = 720
    max_steps: int = 10
    setup: Callable[[StagedDesktopLike], Awaitable[None]]
    check: CheckFunction
    oracle: Callable[[StagedDesktopLike], AsyncIterator[list[Op]]] = _no_oracle
    first_click_targets: Callable[[StagedDesktopLike], Awaitable[tuple[Rect | None, list[Rect]]]] = _no_targets
    theme: str = "plain"
    milestones: tuple[Milestone, ...] = ()
    difficulty: Difficulty = "easy"
    grounding_targets: Callable[[StagedDesktopLike], Awaitable[list[tuple[str, Rect]]]] | None = None
    """Every (instruction of this family, rectangle of its first click) that the start screen admits: the warm start asks
    many questions of one screenshot."""
    shuffle_windows: Callable[[StagedDesktopLike, int], Awaitable[None]] | None = None
    """Place the windows anew by a seed, as another variant would have them, without starting programs again."""
    instruction_from: Callable[[StagedDesktopLike], Awaitable[str]] | None = None
    """Reads the instruction from the staged desktop, for a task whose page says it; `instruction` stands for it before."""
    settle_grace_s: float | None = None
    """How long after the end the check may come true, where a program writes late; None is the judge's own."""
    format_penalty: float = 0.0
    """What every reply that the agent's dialect does not understand takes from the reward."""
    accessibility: bool = False
    """Whether the desktop must have an accessibility tree."""
    infeasible_reward: float | None = None
    """What it is worth that the agent says it cannot be done; None: the end state is judged all the same."""
    check_timeout_s: float | None = None
    """How long the check may take; None: as long as the judge gives any."""
    step_timeout_s: float | None = None
    """The most that performing a step may take; beyond it, and beyond `longest_s` of it all, the episode has no score."""
    episode_timeout_s: float | None = None
    step_cost: float = 0.0
    """What every step takes from the reward."""
    example_end_states: Callable[[], ExampleEndStates] | None = None
    """What the end may look like, nearly right and right, where files say it."""
    oracle_unavailable: str = ""
    """Why `oracle` solves nothing; empty: it does."""
    forged_files: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    """Files, by path, as a forger would write them who knows what is asked for and does not use the application that the task
    names; the check must not pay for them."""
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def split(self) -> Split:
        return split_of(self.seed)

    async def resolve_instruction(self, desktop: StagedDesktopLike) -> str:
        """The instruction, once the desktop is staged."""
        return await self.instruction_from(desktop) if self.instruction_from is not None else self.instruction


@dataclass(frozen=True)
class Family:
    """A generator of seeded tasks. `generate(seed)` must be pure: the same seed gives the same task."""

    name: str
    applications: tuple[str, ...]
    """Debian packages that it needs."""
    tier: Difficulty
    generate: Callable[[int], Task]
    summary: str = ""


def task_family(
    name: str,
    *,
    applications: Sequence[str] = (),
    difficulty: Difficulty = "easy",
    suite: str = "custom",
    summary: str = "",
) -> Callable[[Callable[[int], Task]], Family]:
    """Make a family of a pure function from a seed to a task. The decorator fills in id, family, suite and seed.

    Example:
        >>> @task_family("save_note", applications=["mousepad"])
        ... def save_note(seed): ...
    """

    def make(generate: Callable[[int], Task]) -> Family:
        def generate_named(seed: int) -> Task:
            task = generate(seed)
            lacking = task.oracle_unavailable or ("it has no oracle" if task.oracle is _no_oracle else "")
            named = {"id": f"{suite}/{name}/{seed}", "family": name, "suite": suite, "seed": seed}
            return replace(task, **named, difficulty=difficulty, oracle_unavailable=lacking)

        made = Family(name, tuple(applications), difficulty, generate_named, summary)
        registry.register("task_family", name, made)
        return made

    return make
