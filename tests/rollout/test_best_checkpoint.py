"""Held-out evaluations beside training, the best checkpoint, and PPO in the loop."""

import asyncio

import pytest
import training_fixture

from deskhand.config.schema import Config
from deskhand.recipes import train
from deskhand.rollout.eval_loop import EvalReport
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import TRAIN
from deskhand.trainer.checkpoint import CheckpointManager


async def test_due_steps_are_evaluated_with_their_own_weights_and_the_best_is_kept(tmp_path):
    asked: list[tuple[int, int]] = []
    success = {2: 0.4, 4: 0.8, 5: 0.5}

    async def evaluate(version):
        before = parts.engine.version
        await asyncio.sleep(0.3)  # training episodes go on meanwhile
        assert parts.engine.version == before == version, "weights changed under an evaluation"
        asked.append((version, parts.trainer.steps))
        return success[version]

    config = training_fixture.small(total_steps=5, groups_per_step=1, eval_every=2, save_every=3)
    async with training_fixture.assembled(tmp_path / "run", config, evaluate=evaluate) as parts:
        await parts.loop.run()
        assert asked == [(2, 2), (4, 4), (5, 5)]
        best = parts.loop.checkpoints.best()
        assert (best.step, best.success) == (4, 0.8)
        assert 4 in parts.loop.checkpoints.steps()
        known = {point.step for point in parts.run.checkpoints()}
        assert {2, 3, 4, 5} <= known, "what is evaluated is saved first"


def report(hits: int) -> EvalReport:
    """Of the scored episodes every one succeeded."""
    rate = Proportion(hits, 10)
    return EvalReport("v", Proportion(hits, hits), {}, Proportion(0, 0), 0.0, success_of_started=rate)


@pytest.mark.parametrize(("hits", "best"), [((2, 6, 5), 2), ((5, 3, 2), 0), ((4, 4, 4), 0), ((1, 2, 9), 3)])
async def test_the_best_checkpoint_is_selected_on_validation_and_announced_with_a_test_score(tmp_path, hits, best):
    for step in (0, 2, 3):
        (tmp_path / f"step-{step:06d}").mkdir()
    kept, asked = CheckpointManager(tmp_path, keep=1), []
    kept.record_eval(2, hits[1] / 10)  # while training
    validated = dict(zip((0, 2, 3), hits, strict=True))
    tested = {0: 1, 2: 7, 3: 10}

    async def evaluate(config, step):
        asked.append((config.evaluation.split, step))
        return report((validated if config.evaluation.split == "validation" else tested)[step])

    known = {step: report(tested[step]) for step in (0, 3)}
    line = await train.announce_best(Config(), kept, known, evaluate)
    assert kept.best().step == best, "the test score of step 3 is higher and must not be read"
    assert line.startswith(
        f"best checkpoint: step {best}, selected by {10.0 * validated[best]:.1f} % on the validation"
    )
    assert f"; {10.0 * tested[best]:.1f}%" in line
    assert asked == [("validation", 0), ("validation", 3), *([("test", 2)] if best == 2 else [])]


async def test_a_checkpoint_selected_on_training_tasks_is_announced_as_such(tmp_path):
    async def evaluate(config, step):
        assert config.evaluation.split == "train"
        return report(5)

    config = Config.model_validate({"evaluation": {"split": "train"}})
    line = await train.announce_best(config, CheckpointManager(tmp_path), {0: report(5)}, evaluate)
    assert line == "best checkpoint: step 0, selected by 50.0 % on the training tasks (kept)"


async def test_an_interrupted_evaluation_is_repeated(tmp_path):
    started = asyncio.Event()
    asked: list[int] = []

    async def never(version):
        started.set()
        await asyncio.Event().wait()

    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(total_steps=3, groups_per_step=1, eval_every=2), evaluate=never
    ) as parts:
        work = asyncio.create_task(parts.loop.run())
        await started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert parts.run.checkpoint().step == 2

    async def evaluate(version):
        asked.append(version)
        return 0.5

    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(total_steps=3, groups_per_step=1, eval_every=2), evaluate=evaluate
    ) as parts:
        await parts.loop.run()
        assert asked == [2, 3]
        assert parts.loop.checkpoints.best().step == 2, "of equals the earlier"


async def test_ppo_trains_groups_of_equal_reward_too_and_resumes_with_its_critic(tmp_path):
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(total_steps=2, groups_per_step=1), algorithm="ppo"
    ) as parts:
        await parts.loop.run()
        books = parts.run.episode_counts()
        assert books["zero_variance"] == 0
        assert books["trained"] >= 2 * 3
        assert any(entry["train/value_loss"] > 0 for entry in parts.run.metrics()), "it is 0 while all rewards are"
        head = parts.trainer.critic.head.weight.detach().clone()
        assert head.any()
    async with training_fixture.assembled(
        tmp_path / "run", training_fixture.small(total_steps=3, groups_per_step=1), algorithm="ppo"
    ) as parts:
        seen = []
        step = parts.trainer.step
        parts.trainer.step = lambda samples, images: (
            seen.append(parts.trainer.critic.head.weight.detach().clone()) or step(samples, images)
        )
        await parts.loop.run()
        assert (seen[0] == head).all()
        rows = parts.run.episodes(TRAIN, "trained")
        assert {row.step for row in rows} == {1, 2, 3}
