"""Evaluation: intervals, resuming, and outages that are not failures."""

import dataclasses
import random

import episode_results
import fake_desktop
import pytest

from deskhand.errors import ConfigError
from deskhand.rollout.eval_loop import build_eval_report, evaluate
from deskhand.store.run import Run
from deskhand.tasks.task import seed_for


class Player:
    """Ends episodes by a rule: seed -> list of rewards, one per attempt."""

    num_judging = 0

    def __init__(self, rule) -> None:
        self.rule, self.played = rule, []

    async def run(self, ticket):
        attempt = self.played.count(ticket.task.seed)
        self.played.append(ticket.task.seed)
        reward = self.rule(ticket.task.seed, attempt)
        if isinstance(reward, Exception):
            raise reward
        return dataclasses.replace(
            episode_results.result(
                reward,
                episode_id=ticket.episode_id,
                first_click_on_target=reward == 1.0 if reward is not None else None,
            ),
            task_id=ticket.task.id,
            member=ticket.member,
            family=ticket.task.family,
            seed=ticket.task.seed,
            split=ticket.task.split,
        )


def held_out(count: int):
    return [fake_desktop.square_task(seed_for("test", index)) for index in range(count)]


async def test_each_task_counts_once_and_outages_are_retried(tmp_path):
    player = Player(lambda seed, attempt: None if seed % 5 == 0 and attempt == 0 else float(seed % 2))
    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "before", held_out(20), player, 3)
        assert (report.success.hits, report.success.total) == (10, 20)
        assert (report.first_click.hits, report.first_click.total) == (10, 20)
        assert report.by_family["square"] == report.success
        assert report.errored == {}
        assert report.reward == 0.5
        assert {row.split for row in run.episodes("before")} == {"test"}
        assert "50.0% [29.9%, 70.1%] of 20" in str(report.success)


async def test_samples_without_a_score_are_reported_and_are_not_failures(tmp_path):
    player = Player(lambda seed, attempt: None if seed % 10 == 0 else 1.0)
    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "before", held_out(20), player, 2)
        assert (report.success.hits, report.success.total) == (18, 18)
        assert report.errored == {"infrastructure": 2}
        assert len(player.played) == 18 + 2 * 3
        assert (report.success_of_started.hits, report.success_of_started.total) == (18, 24)
        assert report.family_of_started == {"square": report.success_of_started}
        assert report.num_unscored == 6
        assert "6 of 24 episodes have no score" in report.warning
        assert "100.0 % of the scored, 75.0 % of all that were started" in report.warning


async def test_scores_that_trust_the_guest_are_counted(tmp_path):
    class Trusting(Player):
        async def run(self, ticket):
            found = await super().run(ticket)
            trusted = dataclasses.replace(found.outcome, guest_trusted=ticket.task.seed % 4 < 2)
            return dataclasses.replace(found, outcome=trusted)

    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "before", held_out(20), Trusting(lambda seed, attempt: float(seed % 2)), 2)
        assert report.num_guest_trusted == 5, "of ten, half are worth 0"
        assert build_eval_report(run, "after").num_guest_trusted == 0


@pytest.mark.parametrize("voids", [False, True])
async def test_leaving_failures_without_a_score_does_not_raise_success(tmp_path, voids):
    """A policy that solves half of its episodes, and voids the others if it can, which are then played again."""

    def rule(seed, attempt):
        solved = random.Random(f"{seed}:{attempt}").random() < 0.5
        return 1.0 if solved else None if voids else 0.0

    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "before", held_out(200), Player(rule), 2)
    assert report.success_of_started.value == pytest.approx(0.5, abs=0.1)
    assert bool(report.warning) is voids
    assert (report.success.value == 1.0) is voids


async def test_a_sample_without_a_score_is_a_failure_for_pass_at_k(tmp_path):
    player = Player(lambda seed, attempt: 1.0 if attempt == 0 else None)
    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "before", held_out(2), player, 1, samples_per_task=2)
    assert report.success.value == 1.0
    assert report.pass_at == pytest.approx({1: 0.5, 2: 1.0})


async def test_rates_that_differ_by_a_point_or_less_are_no_warning(tmp_path):
    player = Player(lambda seed, attempt: None if seed % 200 == 0 and attempt == 0 else 1.0)
    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "before", held_out(200), player, 4)
    assert report.num_unscored == 1
    assert report.warning == ""


async def test_a_killed_evaluation_resumes(tmp_path):
    tasks = held_out(12)
    with Run.create(tmp_path / "run", {}) as run:
        with pytest.raises(KeyError):
            await evaluate(run, "after", tasks, Player(lambda seed, attempt: KeyError() if seed % 12 == 7 else 1.0), 1)
        done = len(run.episodes("after", "scored"))
        assert 0 < done < 12
    with Run.open(tmp_path / "run") as run:
        player = Player(lambda seed, attempt: 0.0)
        report = await evaluate(run, "after", tasks, player, 1)
        assert len(player.played) == 12 - done
        assert (report.success.hits, report.success.total) == (done, 12)
        assert build_eval_report(run, "after") == report
        assert await evaluate(run, "after", tasks, player, 1) == report
        assert len(player.played) == 12 - done


async def test_repeats_are_played_each_once_and_give_pass_at_k(tmp_path):
    tasks = held_out(6)
    player = Player(lambda seed, attempt: float(seed % 3 == 0 or (seed % 3 == 1 and attempt == 2)))
    with Run.create(tmp_path / "run", {}) as run:
        await evaluate(run, "after", tasks, player, 2, samples_per_task=2)
        report = await evaluate(run, "after", tasks, player, 2, samples_per_task=4)
        assert len(player.played) == 24
        assert {(row.task_id, row.member) for row in run.episodes("after")} == {
            (task.id, k) for task in tasks for k in range(4)
        }
        assert (report.success.hits, report.success.total) == (2 * 4 + 2, 24)
        assert report.pass_at == pytest.approx({1: (2 + 2 / 4) / 6, 2: (2 + 2 * (1 - 3 / 6)) / 6, 4: 4 / 6})
        assert report.family_pass_at == {"square": report.pass_at}
        assert report.success.effective is not None
        assert report.success.effective < 24


async def test_a_report_covers_the_requested_tasks_only(tmp_path):
    tasks = held_out(6)
    player = Player(lambda seed, attempt: float(seed % 6 < 2))
    with Run.create(tmp_path / "run", {}) as run:
        await evaluate(run, "after", tasks, player, 2, samples_per_task=2)
        fewer = await evaluate(run, "after", [task for task in tasks if task.seed % 6 < 2], player, 2)
        assert (fewer.success.hits, fewer.success.total, fewer.pass_at) == (2, 2, {})
        assert len(player.played) == 12
        assert build_eval_report(run, "after").success.total == 12


@pytest.mark.parametrize(
    ("variants", "names"), [(1, {"chrome": 2, "gimp": 1}), (2, {"chrome/a": 2, "chrome/b": 2, "gimp/c": 2})]
)
async def test_tasks_of_files_are_reported_by_domain_and_families_by_name(tmp_path, variants, names):
    made = [fake_desktop.square_task(seed_for("test", index)) for index in range(3 * variants)]
    families = ("chrome/a", "chrome/b", "gimp/c")
    tasks = [dataclasses.replace(task, family=families[index % 3]) for index, task in enumerate(made)]
    with Run.create(tmp_path / "run", {}) as run:
        report = await evaluate(run, "x", tasks, Player(lambda seed, attempt: 1.0), 2)
    assert {name: rate.total for name, rate in report.by_family.items()} == names
    assert report.success.total == 3 * variants


async def test_reserved_names_and_double_tasks_are_refused(tmp_path):
    with Run.create(tmp_path / "run", {}) as run:
        with pytest.raises(ConfigError, match="evaluation name 'train' is reserved"):
            await evaluate(run, "train", held_out(1), Player(lambda *_: 1.0), 1)
        with pytest.raises(ConfigError, match="duplicate task"):
            await evaluate(run, "x", held_out(1) * 2, Player(lambda *_: 1.0), 1)
