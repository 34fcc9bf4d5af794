"""Every family of the suite: as generated, and as played on real embedded desktops.

`DESKHAND_TEST_FULL=1` plays ten times as many variants.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
from desktops import desktop_for
from full import FULL

from deskhand.desktop.applications.catalog import PROFILES
from deskhand.desktop.applications.install import missing
from deskhand.errors import ConfigError
from deskhand.tasks.family_checks import check_family, check_family_live
from deskhand.tasks.suites import basics, family_registry, web
from deskhand.tasks.suites.basics import FAMILIES, make_task
from deskhand.tasks.task import SPLIT_SIZE, SPLITS, CheckResult, Family, Task, named_family, seed_for, split_of

LIVE_SEEDS = [seed_for(split, index) for split in ("train", "test") for index in range(10 if FULL else 1)]
WIDE_PX = 1280
EVERY_APPLICATION = (
    "sheet_sort", "text_table", "page_form", "picture_scale", "note_to_sheet", "shell_collect", "shell_process",
    "code_function", "archive_add", "view_delete", "paper_price", "settings_player", "slide_move", "draw_page",
    "mail_folder",
)  # fmt: skip
"""Of the families on the wide screen those that are played at any size of the tests, on one variant each."""
everywhere = pytest.mark.parametrize("name", sorted(FAMILIES))
SMALL = [name for name, family in FAMILIES.items() if family.generate(0).width < WIDE_PX]
WIDE = [name for name in FAMILIES if name not in SMALL]


@everywhere
def test_generated_tasks_are_pure_and_well_formed(name: str) -> None:
    seeds = [seed_for(split, index) for split in ("train", "test") for index in range(1000 if FULL else 100)]
    assert check_family(FAMILIES[name], seeds) == []


@pytest.mark.parametrize("name", sorted(SMALL))
async def test_only_the_oracle_solves_the_task(name: str) -> None:
    assert await check_family_live(FAMILIES[name], LIVE_SEEDS, desktop_for) == []


@pytest.mark.parametrize("name", sorted(WIDE) if FULL else EVERY_APPLICATION)
async def test_only_the_oracle_solves_the_task_on_the_wide_screen(name: str) -> None:
    if lacking := missing(list(FAMILIES[name].applications)):
        pytest.skip(f"not installed: {' '.join(lacking)} (deskhand desktop install all)")
    seeds = LIVE_SEEDS if FULL else LIVE_SEEDS[-1:]
    assert await check_family_live(FAMILIES[name], seeds, desktop_for, max_concurrent=2) == []


def test_lint_finds_a_family_that_is_not_pure_or_not_well_formed() -> None:
    good = FAMILIES["file_move"]
    dice = random.Random(0)

    def problems(change: Callable[[Task], Task]) -> str:
        return "\n".join(check_family(replace(good, generate=lambda seed: change(good.generate(seed))), range(5)))

    assert problems(lambda task: task) == ""
    assert "two generations differ" in problems(lambda task: replace(task, metadata={"dice": dice.random()}))
    assert "does not match the seed" in problems(lambda task: replace(task, id="basics/file_move/x"))
    assert "the task has" in problems(lambda task: replace(task, family="other"))
    assert "must be one line" in problems(lambda task: replace(task, instruction="a\nb"))
    assert "must be >= 0" in problems(lambda task: replace(task, format_penalty=-0.1))
    assert "give the same instruction" in problems(lambda task: replace(task, instruction="Move it"))
    assert "sum to at most 1" in problems(lambda task: replace(task, milestones=task.milestones * 5))


async def test_lint_finds_a_task_that_is_solved_by_doing_nothing() -> None:
    good = FAMILIES["terminal_close"]

    async def always(_: object) -> CheckResult:
        return CheckResult(1.0)

    bad = replace(good, generate=lambda seed: replace(good.generate(seed), check=always))
    (problem,) = await check_family_live(bad, [0], desktop_for)
    assert "already scores 1" in problem


def test_training_and_held_out_seeds_never_meet() -> None:
    assert make_task("file_move", seed_for("train", SPLIT_SIZE - 1)).split == "train"
    assert make_task("file_move", seed_for("test", 0)).split == "test"
    for split in SPLITS:
        assert [split_of(seed_for(split, index)) for index in (0, SPLIT_SIZE - 1)] == [split, split]
        with pytest.raises(ConfigError):
            seed_for(split, SPLIT_SIZE)
        with pytest.raises(ConfigError):
            seed_for(split, -1)


@pytest.mark.parametrize("family", ["terminal_run", "terminal_close", "calculator_number"])
def test_instructions_of_the_last_split_occur_in_no_other(family: str) -> None:
    instructions = {
        split: {make_task(family, seed_for(split, index)).instruction for index in range(600)} for split in SPLITS
    }
    held_out = instructions.pop("test_instructions")
    assert held_out
    for known in instructions.values():
        assert not held_out & known
    assert instructions["test"] == instructions["train"] == instructions["validation"], "placements differ alone"


def test_a_family_without_held_out_instructions_refuses_that_split_by_name() -> None:
    with pytest.raises(ConfigError, match="file_move: the family has no split test_instructions"):
        make_task("file_move", seed_for("test_instructions", 0))


@pytest.mark.parametrize("share", [False, True])
def test_a_family_must_hold_out_a_part_of_its_instructions(share: bool) -> None:
    made = replace(make_task("file_move", 0), instruction="Press it")
    family = named_family("partly", ("xterm",), "easy", "custom", "", lambda seed: made, lambda task: share)
    split = "train" if share else "test_instructions"
    with pytest.raises(ConfigError, match="partly: holds_out must be true for some"):
        family.generate(seed_for(split, 0))


def test_no_two_families_have_one_name() -> None:
    modules = [module for module in vars(basics).values() if isinstance(module, ModuleType)]
    names = [each.name for module in modules for each in vars(module).values() if isinstance(each, Family)]
    assert sorted(names) == sorted(FAMILIES)


def test_an_unknown_family_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"solitaire.*file_move"):
        make_task("solitaire", 0)


def test_every_program_can_be_installed_by_setup_or_desktop_install() -> None:
    listed = set(files("deskhand.desktop.local").joinpath("packages.txt").read_text().split())
    on_demand = {package for profile in PROFILES.values() for package in profile.packages}
    for family in FAMILIES.values():
        assert set(family.applications) <= listed | on_demand, family.name


def test_the_suite_is_as_wide_as_it_should_be() -> None:
    heavy = {"libreoffice-calc", "libreoffice-writer", "chromium", "gimp"}
    assert len(FAMILIES) >= 30
    assert sum(bool(heavy & set(family.applications)) for family in FAMILIES.values()) >= 12
    assert {FAMILIES[name].difficulty for name in WIDE} == {"easy", "medium", "hard"}
    assert all((task.width, task.height) == (1280, 720) for task in (FAMILIES[name].generate(0) for name in WIDE))
    assert sum(family.applications == ("zenity",) for family in FAMILIES.values()) <= 2


def test_the_default_families_are_those_with_small_screens() -> None:
    """The bundled policy was trained on them: what the seeds of the training split ask must not change."""
    default = family_registry.DEFAULT
    assert tuple(name for name in SMALL if FAMILIES[name].difficulty == "easy") == default
    text = "\n".join(make_task(name, seed).instruction for name in default for seed in range(400))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "b30fb40d44f50846756a05f491499ce57ff0cb3ea67cdfe6d072e7615e8b22b5"


def test_the_documentation_lists_every_family_with_its_milestones() -> None:
    whole = Path(__file__).parents[2].joinpath("docs", "tasks.md").read_text()
    text = whole.split("## The suite `basics`")[1].split("\n## ")[0]
    rows = [line.split("|")[1].strip(" `") for line in text.splitlines() if line.startswith("| `")]
    assert set(rows) == set(FAMILIES)
    for family in FAMILIES.values():
        for task in map(family.generate, range(8)):
            milestones = ", ".join(f"{milestone.name} {milestone.weight:g}" for milestone in task.milestones)
            assert f"| `{family.name}` | {milestones}" in text or not milestones, family.name
            assert any(
                line.startswith(f"| `{family.name}` |") and f"{task.width}x{task.height}" in line
                for line in text.splitlines()
            )


def test_families_take_few_lines() -> None:
    """At most 45 per family, blank ones not counted, in all modules of `basics` and `web` that define families."""
    defining = [
        module
        for name, module in sys.modules.items()
        if name.startswith(("deskhand.tasks.suites.basics.", "deskhand.tasks.suites.web."))
        and any(isinstance(value, Family) for value in vars(module).values())
    ]
    lines = [line for module in defining for line in Path(str(module.__file__)).read_text().splitlines()]
    per_family = sum(bool(line.strip()) for line in lines) / len({**FAMILIES, **web.FAMILIES})
    assert len(defining) > 30
    assert per_family <= 45, f"{per_family:.1f}"
