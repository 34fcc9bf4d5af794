"""Tasks, families and checks: what a suite must provide.

A `Family` generates unlimited seeded `Task`s. The judge (`tasks.judge`) runs a task's check; suites are in
`tasks.suites`, task files in `tasks.formats`.

Invariant: a task is a pure function of family and seed. The seeds of two splits never overlap, and an instruction of
the split `test_instructions` occurs in no other split.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from deskhand import registry
from deskhand.actions.ops import Op
from deskhand.desktop.base import StageableDesktop
from deskhand.errors import ConfigError
from deskhand.tasks.abilities import Ability
from deskhand.tasks.outcome import Finding

Split = Literal["train", "test", "validation", "test_instructions"]
"""`validation` selects a checkpoint, `test` reports on it; `test_instructions` is a test on instructions that the other
splits never use."""
Difficulty = Literal["easy", "medium", "hard"]
SPLITS: tuple[Split, ...] = get_args(Split)
SPLIT_SIZE = 1_000_000_000
"""Seeds per split: the first billion is for training, and so on in the order of `SPLITS`."""
_DRAW_STRIDE, _MAX_DRAWS = 1000 * SPLIT_SIZE, 1000


def split_of(seed: int) -> Split:
    """Return the split of a seed."""
    return SPLITS[min(seed // SPLIT_SIZE, len(SPLITS) - 1)]


def seed_for(split: Split, index: int) -> int:
    """Return the seed of the `index`-th variant of a split. Raises `ConfigError` if the index leaves the split."""
    if not 0 <= index < SPLIT_SIZE:
        raise ConfigError(f"variant index must be in 0..{SPLIT_SIZE - 1}, got {index}")
    return index + SPLITS.index(split) * SPLIT_SIZE


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
    """Result of one check: `value` in [0, 1], a detail, and its clauses."""

    value: float
    detail: str = ""
    untrusted_source: bool = False
    """Whether the value depends on what a live guest process reported."""
    findings: tuple[Finding, ...] = ()
    no_retry: bool = False
    """Whether the judge must not run the check again, because a second run would be a new opinion (a model's
    vote), or acts in the guest."""


CheckFunction = Callable[[StageableDesktop], Awaitable[CheckResult]]


@dataclass(frozen=True, slots=True)
class Milestone:
    """A partial goal. `check` runs after every step, so it must be cheap and must not disturb the desktop."""

    name: str
    weight: float
    check: CheckFunction
    after: tuple[str, ...] = ()
    """Earlier milestones of the task that must be fully reached before this one counts."""


FileContents = Mapping[str, bytes]
"""Bytes of files in the guest's home by path."""


@dataclass(frozen=True)
class ExampleEndStates:
    """Example end states as files, for the audit.

    A path that another state of the same task names is absent from a state that does not name it.
    """

    negatives: dict[str, FileContents]
    """States that are nearly right, by a description of the mistake; all must score 0."""
    positive: FileContents | None = None
    """A correct state; None if files alone do not solve the task."""


async def _no_oracle(desktop: StageableDesktop) -> AsyncIterator[list[Op]]:
    raise ConfigError("the task has no oracle; give it one, or choose another policy")
    yield []


async def _no_targets(desktop: StageableDesktop) -> tuple[Rect | None, list[Rect]]:
    return None, []


@dataclass
class StartState:
    """What is known of a task's start state, which is the same in every episode."""

    value: float | None = None
    """What `check` gives for the untouched start state; None: not judged yet."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One variant of a family, ready to run. `task_family` fills in `id`, `family`, `suite` and `seed`.

    `setup(desktop)` stages a desktop that was just reset. `check(desktop)` judges the end state. `oracle(desktop)`
    yields lists of ops, one list per step, the last with `Done()`; it acts as a person would.
    `first_click_targets(desktop)` returns the rectangle of a correct first click and the rectangles of distractors,
    both in the start state.
    """

    id: str = ""
    family: str = ""
    suite: str = ""
    seed: int = 0
    instruction: str
    width: int = 1280
    height: int = 720
    max_steps: int = 10
    setup: Callable[[StageableDesktop], Awaitable[None]]
    check: CheckFunction
    start_check: CheckFunction | None = None
    """Judges the start state and leaves the desktop as it is; None: `check` does so."""
    oracle: Callable[[StageableDesktop], AsyncIterator[list[Op]]] = _no_oracle
    first_click_targets: Callable[[StageableDesktop], Awaitable[tuple[Rect | None, list[Rect]]]] = _no_targets
    theme: str = "plain"
    milestones: tuple[Milestone, ...] = ()
    difficulty: Difficulty = "easy"
    grounding_targets: Callable[[StageableDesktop], Awaitable[list[tuple[str, Rect]]]] | None = None
    """Every (instruction, first click) of this family that the start screen admits, for the supervised warm start;
    none of the split `test_instructions`."""
    shuffle_windows: Callable[[StageableDesktop, int], Awaitable[None]] | None = None
    """Arrange the start screen by a seed, such as its windows, without restarting programs."""
    instruction_from: Callable[[StageableDesktop], Awaitable[str]] | None = None
    """Reads the instruction from the staged desktop; until then `instruction` is a placeholder."""
    terminated: Callable[[StageableDesktop], Awaitable[bool]] | None = None
    """Returns whether the task has ended on its own, such as a game that is over. Called after every step, so it must
    be cheap and must not disturb the desktop. None: only the agent and the limits end an episode."""
    settle_grace_s: float | None = None
    """Seconds from the last action to the judgment, in which programs may still write; None: the judge's default."""
    format_penalty: float = 0.0
    """Reward deduction for each reply that cannot be parsed."""
    accessibility: bool = False
    """Whether the desktop must provide an accessibility tree."""
    accepted_answers: tuple[str, ...] = ()
    """If any, the agent must end with one of these answers (compared without case, outer white space and a final
    period), and `check` must hold too."""
    infeasible_reward: float | None = None
    """Reward if the agent declares the task infeasible; None: the end state is judged."""
    infeasible_check: CheckFunction | None = None
    """Must hold for `infeasible_reward`, such as that nothing was changed; None: declaring it is enough."""
    check_timeout_s: float | None = None
    """Maximum duration of a check; None: the judge's default."""
    step_timeout_s: float | None = None
    """Maximum duration of one step; the episode is errored beyond it."""
    episode_timeout_s: float | None = None
    """Maximum duration of the episode; it is errored beyond it."""
    step_cost: float = 0.0
    """Reward deduction for each step."""
    example_end_states: Callable[[], ExampleEndStates] | None = None
    """Example end states for the audit."""
    oracle_unavailable: str = ""
    """Why `oracle` cannot solve the task; empty if it can."""
    oracle_knows: tuple[str, ...] = ()
    """Words that the oracle types because everyone knows the program, such as commands; the same for all seeds."""
    oracle_follows: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    """For a word that the oracle types, or "KEY several times", the texts on the screen from which it follows, if it is
    neither in the instruction nor on the screen itself (`tasks.oracle_sight`). None: the oracle reads the screen.
    """
    forged_files: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    """Correct files by path that the wrong application wrote; the check must score them 0."""
    metadata: dict[str, Any] = field(default_factory=dict)
    start: StartState = field(init=False, compare=False, repr=False, default_factory=lambda: StartState())

    @property
    def split(self) -> Split:
        return split_of(self.seed)

    async def resolve_instruction(self, desktop: StageableDesktop) -> str:
        """Return the instruction of the staged desktop."""
        return await self.instruction_from(desktop) if self.instruction_from is not None else self.instruction


@dataclass(frozen=True)
class Family:
    """A generator of seeded tasks. `generate` must be pure: equal seeds give equal tasks."""

    name: str
    applications: tuple[str, ...]
    """Debian packages that the tasks need."""
    difficulty: Difficulty
    generate: Callable[[int], Task]
    summary: str = ""
    has_test_instructions: bool = False
    """Whether the split `test_instructions` exists."""
    abilities: tuple[Ability, ...] = ()
    """What the tasks exercise, from the list in `tasks.abilities`."""


HoldsOut = Callable[[Task], bool]
"""Whether the instruction of a task is held out: it then occurs in the split `test_instructions` only."""


def task_family(
    name: str,
    *,
    applications: Sequence[str] = (),
    difficulty: Difficulty = "easy",
    suite: str = "custom",
    summary: str = "",
    holds_out: HoldsOut | None = None,
) -> Callable[[Callable[[int], Task]], Family]:
    """Make a family of a pure function from a seed to a task. The decorator fills in id, family, suite and seed.

    `holds_out` says which instructions only the split `test_instructions` has; without it that split does not exist.

    Examples:
        >>> @task_family("save_note", applications=["mousepad"])
        ... def save_note(seed): ...
    """

    def make(generate: Callable[[int], Task]) -> Family:
        made = named_family(name, tuple(applications), difficulty, suite, summary, generate, holds_out)
        registry.register("task_family", name, made)
        return made

    return make


def named_family(
    name: str,
    applications: tuple[str, ...],
    difficulty: Difficulty,
    suite: str,
    summary: str,
    generate: Callable[[int], Task],
    holds_out: HoldsOut | None = None,
) -> Family:
    """Return a family whose tasks get `id`, `family`, `suite`, `seed`, `difficulty` and `oracle_unavailable`."""

    def generate_named(seed: int) -> Task:
        task = _draw(name, generate, holds_out, seed)
        lacking = task.oracle_unavailable or ("it has no oracle" if task.oracle is _no_oracle else "")
        path = name if name.startswith(f"{suite}/") else f"{suite}/{name}"
        named = {"id": f"{path}/{seed}", "family": name, "suite": suite, "seed": seed}
        return replace(task, **named, difficulty=difficulty, oracle_unavailable=lacking)

    return Family(name, applications, difficulty, generate_named, summary, holds_out is not None)


def _draw(name: str, generate: Callable[[int], Task], holds_out: HoldsOut | None, seed: int) -> Task:
    """Return the task of a seed. A draw with an instruction of the wrong split is replaced by one of a seed beyond all
    splits, so every other seed gives the task that it gives without `holds_out`."""
    wanted = split_of(seed) == "test_instructions"
    if holds_out is None:
        if wanted:
            raise ConfigError(f"{name}: the family has no split test_instructions; use the split test, or holds_out")
        return generate(seed)
    for draw in range(_MAX_DRAWS):
        task = generate(seed + draw * _DRAW_STRIDE)
        if holds_out(task) == wanted:
            return task
    found = "only false" if wanted else "only true"
    raise ConfigError(f"{name}: holds_out must be true for some instructions and false for others, got {found}")
