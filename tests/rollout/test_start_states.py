"""A start state that is solved already pays nothing, whichever way an episode is run, and a mistake of the code is no
outage."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import fake_desktop
import pytest

from deskhand.actions.ops import Done
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import CodeError, ConfigError
from deskhand.integrations.areal.workflow import run_group
from deskhand.integrations.openadapt.rl_environment import RLEnvironment
from deskhand.rollout.episode import desktop_spec, run_episode
from deskhand.rollout.groups import EpisodeRequest, GroupBuffer
from deskhand.rollout.scheduler import MAX_BUGS, Scheduler
from deskhand.rollout.scored_workflow import ScoredWorkflow
from deskhand.tasks.formats.openadapt import load_task
from deskhand.tasks.judge import AlreadySolvedError
from deskhand.tasks.outcome import Errored, Scored
from deskhand.tasks.task import CheckResult, Task


class Idle:
    """An agent that ends at once."""

    async def run(self, episode: Any) -> None:
        await episode.observe()
        await episode.act((Done(),))


def task(**changes: Any) -> Task:
    return replace(fake_desktop.square_task(1), milestones=(), settle_grace_s=0.0, **changes)


def scores(*values: float) -> Any:
    """A check that gives these values one after the other, the last one for ever."""
    left = list(values)

    async def check(desktop: Any) -> CheckResult:
        return CheckResult(left.pop(0) if len(left) > 1 else left[0])

    return check


async def play(request: EpisodeRequest, agent: Any = None) -> Any:
    desktop = fake_desktop.PaintedDesktop()
    return await run_episode(request, desktop, agent or Idle(), None)  # type: ignore[arg-type]


async def test_an_episode_of_a_solved_task_has_no_score():
    result = await play(EpisodeRequest("e", task(check=scores(1.0))))
    assert isinstance(result.outcome, Errored)
    assert (result.outcome.cause, result.reward) == ("already_solved", None)
    assert "already scores 1" in result.outcome.message


async def test_a_group_of_a_solved_task_gives_no_row_and_no_other_episodes_in_either_trainer():
    solved = task(check=scores(1.0))
    group, results = await run_group("g", solved, 3, play, timeout_s=30, max_retries=5)
    assert (len(results), group.scored, group.has_signal) == (3, [], False)
    buffer = GroupBuffer(lambda number: solved, size=3, limit=1, max_retries=5)
    request, opened = buffer.next_request()  # type: ignore[misc]
    assert opened is not None
    closed = buffer.finish(await play(request))
    assert closed is opened
    assert closed.state == "closed"


def test_an_environment_of_a_solved_task_does_not_start():
    with (
        RLEnvironment(lambda name: task(check=scores(1.0)), "x", desktop=fake_desktop.PaintedDesktop) as env,
        pytest.raises(AlreadySolvedError),
    ):
        env.collect_rollout(lambda frame: {"type": "done"})


async def test_a_plain_workflow_of_a_solved_task_raises():
    pool = fake_desktop.PaintedPool(1)

    class Leased:
        async def __aenter__(self) -> Any:
            self.lease = await pool.lease(desktop_spec(task()))
            return self.lease.desktop

        async def __aexit__(self, *error: object) -> None:
            await pool.release(self.lease)

    workflow = ScoredWorkflow(Leased, lambda family, seed: task(check=scores(1.0)), Idle())
    with pytest.raises(AlreadySolvedError):
        await workflow.run({"family": "x", "seed": 1}, base_url="http://127.0.0.1:9/v1")


async def test_what_the_start_state_is_worth_is_not_paid():
    result = await play(EpisodeRequest("e", task(check=scores(0.5, 0.5))))
    assert isinstance(result.outcome, Scored)
    assert result.reward == 0.0
    result = await play(EpisodeRequest("e", task(check=scores(0.5, 0.75))))
    assert result.reward == pytest.approx(0.5)


async def test_the_start_state_is_judged_once_for_a_task_by_its_own_check():
    asked: list[str] = []

    async def start_check(desktop: Any) -> CheckResult:
        asked.append("start")
        return CheckResult(0.0)

    async def check(desktop: Any) -> CheckResult:
        asked.append("end")
        return CheckResult(1.0)

    one = task(check=check, start_check=start_check)
    assert [(await play(EpisodeRequest(f"e{number}", one))).reward for number in range(3)] == [1.0] * 3
    assert asked == ["start", "end", "end", "end"]


async def test_a_check_that_cannot_read_the_start_state_pays_for_the_end_state():
    missing = [True]

    async def check(desktop: Any) -> CheckResult:
        if missing.pop() if missing else False:
            raise FileNotFoundError("not written yet")
        return CheckResult(1.0)

    assert (await play(EpisodeRequest("e", task(check=check)))).reward == 1.0


@pytest.mark.parametrize("error", [TypeError("a"), AttributeError("b"), NameError("c")])
async def test_a_mistake_of_the_code_is_counted_as_such_and_ends_the_run_after_a_few(error):
    async def setup(desktop: Any) -> None:
        raise error

    broken = task(setup=setup)
    result = await play(EpisodeRequest("e", broken))
    assert isinstance(result.outcome, Errored)
    assert result.outcome.cause == "bug"
    assert type(error).__name__ in result.outcome.message

    class Source:
        exhausted, ended = False, 0

        async def next(self) -> EpisodeRequest:
            return EpisodeRequest("e", broken)

        async def on_result(self, result: Any) -> None:
            self.ended += 1

    source = Source()
    with pytest.raises(CodeError, match=type(error).__name__):
        await Scheduler(source, play, 1).run()
    assert source.ended == MAX_BUGS


async def test_a_desktop_that_does_not_fit_ends_the_run_before_the_agent_starts():
    async def setup(desktop: Any) -> None:
        raise ConfigError("the screen has another size")

    with pytest.raises(ConfigError, match="another size"):
        await play(EpisodeRequest("e", task(setup=setup)))
    with pytest.raises(ConfigError, match="another size"):
        await run_group("g", task(setup=setup), 2, play, timeout_s=30)


async def test_a_task_of_openadapt_runs_on_a_local_desktop(tmp_path):
    file = tmp_path / "shell.yaml"
    file.write_text(
        "name: x\nid: shell\nsetup: [{execute: 'echo no > answer'}]\n"
        "evaluate: [{check: command, run: 'cat answer', expect: 'yes'}]\n"
    )
    loaded = load_task(file, 320, 240)
    desktop = LocalDesktop()

    class Writes:
        async def run(self, episode: Any) -> None:
            await episode.observe()
            await episode.desktop.run(["sh", "-c", "echo yes > answer"])

    try:
        idle = await run_episode(EpisodeRequest("e", loaded), desktop, Idle(), None)  # type: ignore[arg-type]
        wrote = await run_episode(EpisodeRequest("e", loaded), desktop, Writes(), None)  # type: ignore[arg-type]
    finally:
        await desktop.close()
    assert (idle.reward, wrote.reward) == (0.0, 1.0), (idle.outcome, wrote.outcome)


@pytest.mark.parametrize("made", [LocalDesktop, fake_desktop.PaintedDesktop])
async def test_a_step_that_a_desktop_cannot_do_ends_the_run_with_its_reason(tmp_path, made):
    file = tmp_path / "open.yaml"
    step = "open: a.txt" if made is LocalDesktop else "execute: 'true'"
    file.write_text(f"name: x\nid: open\nsetup: [{{{step}}}]\nevaluate: [{{check: file, path: a.txt}}]\n")
    desktop = made()
    try:
        with pytest.raises(ConfigError, match="a.txt" if made is LocalDesktop else "has none"):
            await load_task(file, 320, 240).setup(desktop)
    finally:
        await asyncio.shield(desktop.close())
