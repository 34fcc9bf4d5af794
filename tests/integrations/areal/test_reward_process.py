"""Judges in a process of their own: a number comes from the judge alone, and a judge that acts is asked once."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import bad_judges
import pytest
from patience import limit
from processes import is_alive

from deskhand.errors import ConfigError, EvaluatorError
from deskhand.integrations.areal.reward_process import ProcessReward, PureReward


def asked(path: Path) -> int:
    return len(path.read_text().splitlines())


async def test_a_reward_is_computed_in_another_process_whatever_it_prints(tmp_path):
    assert await ProcessReward(bad_judges.half, timeout_s=20)("an argument", 2) == 0.5
    assert await ProcessReward(bad_judges.quarter, timeout_s=20)() == 0.25
    path = tmp_path / "asked"
    assert await ProcessReward(bad_judges.counted, timeout_s=20)(str(path), "zero") == 0.0
    assert int(path.read_text()) != os.getpid()


async def test_a_late_reward_is_an_error_is_called_once_and_leaves_no_process(tmp_path):
    path = tmp_path / "asked"
    async with asyncio.timeout(limit(60)):
        with pytest.raises(EvaluatorError, match=r"timed out after 1\.5 s"):
            await ProcessReward(bad_judges.counted, timeout_s=1.5)(str(path), "hang")
    assert asked(path) == 1
    left = [int(word) for word in path.with_suffix(".children").read_text().split()]
    for _ in range(round(limit(50))):
        if not any(map(is_alive, left)):
            break
        await asyncio.sleep(0.05)
    assert not any(map(is_alive, left))


@pytest.mark.parametrize(
    ("then", "word"),
    [
        ("die", "without a result"),
        ("raise", "no such ledger"),
        ("none", "expected a number"),
        ("nan", "a finite number"),
    ],
)
async def test_a_failing_reward_is_an_error_and_is_not_repeated(tmp_path, then, word):
    path = tmp_path / "asked"
    with pytest.raises(EvaluatorError, match=word):
        await ProcessReward(bad_judges.counted, timeout_s=20)(str(path), then)
    assert asked(path) == 1


async def test_only_a_reward_that_may_be_repeated_is(tmp_path):
    path = tmp_path / "asked"
    assert await ProcessReward(bad_judges.counted, timeout_s=20, max_retries=2)(str(path), "recover") == 1.0
    assert asked(path) == 2
    assert await PureReward(bad_judges.counted, timeout_s=20)(str(path), "zero") == 0.0


async def test_the_event_loop_goes_on_and_a_cancelled_reward_is_killed(tmp_path):
    path = tmp_path / "asked"
    work = asyncio.ensure_future(ProcessReward(bad_judges.counted, timeout_s=60)(str(path), "hang"))
    children, ticks = path.with_suffix(".children"), 0
    while not (children.is_file() and children.read_text()):
        await asyncio.sleep(0.01)
        ticks += 1
        assert ticks < 2000
    assert ticks > 3
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.sleep(0.1)
    assert not any(is_alive(int(word)) for word in children.read_text().split())


@pytest.mark.parametrize("judge", [lambda: 1.0, "a text"])
def test_what_no_other_process_can_find_is_refused_at_once(judge):
    with pytest.raises(ConfigError, match=r"cannot be pickled|not callable"):
        ProcessReward(judge, timeout_s=1)
