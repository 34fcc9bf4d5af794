"""Measured difficulty: the policies' skill, and the counts that are stored and shown."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from deskhand.actions.ops import Click, Done, Drag, Key, Op, Point, Type, Wait, screen_px, to_screen_px
from deskhand.errors import ConfigError
from deskhand.recipes.measure_difficulty import measure_families
from deskhand.tasks import difficulty
from deskhand.tasks.difficulty import (
    POLICY_NAMES,
    Count,
    Measured,
    count_measured,
    load_measured,
    store_measured,
)
from deskhand.tasks.suites import basics, family_registry, family_stats

TASK = family_registry.make_task("dialog_choice", 0)
AT = Point(100, 50, screen_px(TASK.width, TASK.height))
EDGE = Point(0, TASK.height - 1, screen_px(TASK.width, TASK.height))


@pytest.mark.parametrize("op", [Click(AT), Click(EDGE), Drag((AT, AT)), Type("a"), Type("ls\n"), Key(("ctrl", "s"))])
def test_a_slip_changes_an_op_and_stays_on_the_screen(op: Op) -> None:
    for seed in range(20):
        changed = difficulty.slipped(op, TASK, random.Random(seed))
        assert changed != op
        if isinstance(changed, Click) and changed.point is not None:
            x, y = to_screen_px(changed.point, TASK.width, TASK.height)
            assert 0 <= x < TASK.width
            assert 0 <= y < TASK.height
        if isinstance(op, Type) and isinstance(changed, Type):
            assert len(changed.text) == len(op.text) + 1
            assert changed.text.endswith("\n") == op.text.endswith("\n")


def test_ops_that_do_nothing_or_end_the_episode_do_not_slip() -> None:
    assert all(difficulty.slipped(op, TASK, random.Random(0)) == op for op in (Wait(1.0), Done()))


async def test_skill_is_measured_on_desktops_and_stored_by_family(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    unscored = await measure_families(
        ["terminal_run"], 2, difficulty.POLICY_NAMES, lambda counts: store_measured(counts, path)
    )
    assert unscored == []
    counts = load_measured(path)["terminal_run"]
    assert {name: counts[name] for name in ("noop", "random", "one_step")} == dict.fromkeys(
        ("noop", "random", "one_step"), Count(0, 2)
    )
    assert counts["slips"].episodes == 2
    assert counts["oracle"] == Count(2, 2)


async def test_the_share_of_slips_decides_between_the_oracle_and_failure() -> None:
    found: list[Measured] = []
    for share in (0.0, 1.0):
        assert await measure_families(["terminal_run"], 1, ["slips"], found.append, share) == []
    assert found == [{"terminal_run": {"slips": Count(solved, 1)}} for solved in (1, 0)]


async def test_several_families_are_measured_at_a_time() -> None:
    found: list[Measured] = []
    names = ["terminal_run", "terminal_close", "calculator_number"]
    assert await measure_families(names, 1, ["noop"], found.append, concurrency=2) == []
    assert sorted(name for each in found for name in each) == sorted(names)
    assert all(counts == {"noop": Count(0, 1)} for each in found for counts in each.values())


def test_counts_of_other_families_and_policies_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    store_measured({"a": {"noop": Count(0, 5), "slips": Count(4, 5)}, "b": {"slips": Count(1, 5)}}, path)
    store_measured({"a": {"slips": Count(5, 5)}, "c": {"my-model": Count(2, 8)}}, path)
    assert load_measured(path) == {
        "a": {"noop": Count(0, 5), "slips": Count(5, 5)},
        "b": {"slips": Count(1, 5)},
        "c": {"my-model": Count(2, 8)},
    }
    path.write_text('{"a": 3}')
    with pytest.raises(ConfigError, match=r"measured\.json: is not a file of measured difficulty"):
        load_measured(path)


def test_families_are_counted_by_what_solves_them() -> None:
    measured: Measured = {
        "easy": {"noop": Count(0, 5), "random": Count(1, 5), "one_step": Count(3, 5), "slips": Count(5, 5)},
        "medium": {"oracle": Count(4, 5), "noop": Count(0, 5), "random": Count(0, 5), "slips": Count(3, 5)},
        "hard": {"slips": Count(2, 5)},
        "errored": {"slips": Count(0, 0)},
    }
    assert count_measured([*measured, "new"], measured) == [
        ("random solves some", 1),
        ("one_step solves some", 1),
        ("slips solves 0.75 or more", 1),
        ("slips solves 0.5 to 0.75", 1),
        ("slips solves less than 0.5", 1),
        ("slips is not measured", 2),
        ("oracle fails some", 1),
    ]


def test_every_policy_played_every_bundled_family_and_only_skill_solves_one() -> None:
    stored = load_measured()
    assert stored.keys() == {name for suite in ("basics", "web") for name in family_registry.families(suite)}
    assert all(counts["oracle"].share == 1 and counts["oracle"].episodes >= 5 for counts in stored.values())
    assert sum(counts["oracle"].episodes >= 20 for counts in stored.values()) >= 40
    assert all(counts.keys() == set(POLICY_NAMES) for counts in stored.values())
    assert all(counts[name].episodes >= 2 for counts in stored.values() for name in POLICY_NAMES)
    assert all(counts[name].solved == 0 for counts in stored.values() for name in ("noop", "random"))


def test_the_measured_success_of_a_suite_is_shown(cli, tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    store_measured({"terminal_run": {"slips": Count(4, 5), "my-model": Count(1, 8), "noop": Count(0, 5)}}, path)
    rows = family_stats.count_families(basics.FAMILIES.values(), load_measured(path))
    assert [row[1:] for row in rows if row[0] == "measured success"] == [
        ("slips solves 0.75 or more", 1),
        ("slips is not measured", len(basics.FAMILIES) - 1),
    ]
    assert "slips solves 0.75 or more" in cli("tasks", "stats", "--measured", str(path))
    table = cli("tasks", "stats", "--by-family", "--measured", str(path)).splitlines()
    assert table[0].split() == ["family", "difficulty", "noop", "slips", "my-model"]
    (row,) = [line.split() for line in table if line.startswith("terminal_run ")]
    assert row[2:] == ["0/5", "4/5", "1/8"]
    assert len(table) == len(basics.FAMILIES) + 1
