"""Every algorithm reaches the known optimum of two small problems within 2 %."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from small_policy import BANNED, BUILT, VOCABULARY

from deskhand import registry
from deskhand.algorithms.grpo import group_advantages
from deskhand.config.trainer import CriticConfig, TrainerConfig
from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

ARMS = (10, 11, 12, 13)
PAYS = {10: 0.2, 11: 0.5, 12: 0.9, 13: 0.4}
"""Chance of a reward of 1, by arm."""
LEFT, RIGHT = 20, 21
VIEWS = {LEFT: 30, RIGHT: 31}
"""What is seen after each first choice."""
DOORS = {(LEFT, 10): 0.5, (RIGHT, 12): 1.0}
"""Reward by both choices; else 0."""
CHOICES = (*ARMS, LEFT, RIGHT)


def made(algorithm: str, critic: CriticConfig | None = None) -> Trainer:
    """A near uniform policy over the choices, and its trainer."""
    model = copy.deepcopy(BUILT)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.div_(6.0)
    banned = {*BANNED, *range(VOCABULARY)} - set(CHOICES)
    config = TrainerConfig(algorithm=algorithm, learning_rate=3e-3, loss_divisor=2, critic=critic or CriticConfig())
    return Trainer(Policy(model, banned_ids=sorted(banned)), config)


def row(prompt: tuple[int, ...], token: int, logprob: float = 0.0, version: int = 0) -> Sequence:
    """A prompt and one sampled token."""
    length = len(prompt)
    return Sequence(
        (*prompt, token),
        (False,) * length + (True,),
        (0.0,) * length + (logprob,),
        (-1,) * length + (version,),
        (),
        (f"{prompt}-{token}",),
    )


def odds(trainer: Trainer, prompt: tuple[int, ...], choices: tuple[int, ...]) -> np.ndarray:
    """Probabilities of the choices; they need not add up to 1, other choices may be wasted on."""
    return np.exp(
        [float(values[0]) for values in trainer.policy.logprobs([row(prompt, token) for token in choices], {})]
    )


START = (1, 8, 9)


def bandit(
    trainer: Trainer, random: np.random.Generator
) -> list[tuple[list[tuple[tuple[int, ...], int, float]], float]]:
    """Sixteen episodes: (calls as (prompt, token, log-prob), reward)."""
    chances = odds(trainer, START, CHOICES).astype(np.float64)
    drawn = random.choice(len(CHOICES), 16, p=chances / chances.sum())
    return [
        ([(START, CHOICES[k], float(np.log(chances[k])))], float(random.random() < PAYS.get(CHOICES[k], 0.0)))
        for k in drawn
    ]


def doors(
    trainer: Trainer, random: np.random.Generator
) -> list[tuple[list[tuple[tuple[int, ...], int, float]], float]]:
    """The same for the task of two steps; the second call is a fork: its prompt shows what the first choice led to."""
    first = odds(trainer, START, CHOICES).astype(np.float64)
    then = {view: odds(trainer, (1, view), CHOICES).astype(np.float64) for view in (*VIEWS.values(), 32)}
    episodes = []
    for _ in range(16):
        one = int(random.choice(len(CHOICES), p=first / first.sum()))
        view = VIEWS.get(CHOICES[one], 32)
        two = int(random.choice(len(CHOICES), p=then[view] / then[view].sum()))
        calls = [
            (START, CHOICES[one], float(np.log(first[one]))),
            ((1, view), CHOICES[two], float(np.log(then[view][two]))),
        ]
        episodes.append((calls, DOORS.get((CHOICES[one], CHOICES[two]), 0.0)))
    return episodes


def worth_of_bandit(trainer: Trainer) -> float:
    """Expected reward, exactly."""
    return float(sum(chance * PAYS[arm] for chance, arm in zip(odds(trainer, START, ARMS), ARMS, strict=True)))


def worth_of_doors(trainer: Trainer) -> float:
    first = dict(zip(VIEWS, odds(trainer, START, tuple(VIEWS)), strict=True))
    then = {side: dict(zip(ARMS, odds(trainer, (1, view), ARMS), strict=True)) for side, view in VIEWS.items()}
    return float(
        sum(first[side] * then[side][arm] * DOORS.get((side, arm), 0.0) for side, arm in itertools.product(VIEWS, ARMS))
    )


TASKS = {"bandit": (bandit, worth_of_bandit, 0.9), "two steps": (doors, worth_of_doors, 1.0)}


def learn(trainer: Trainer, task: str, steps: int) -> list[float]:
    """The expected reward before, and after every tenth step."""
    play, worth, _ = TASKS[task]
    random = np.random.default_rng(0)
    found = [worth(trainer)]
    for step in range(steps):
        episodes = play(trainer, random)
        rewards = [reward for _, reward in episodes]
        if trainer.algorithm.uses_critic:
            advantages = group_advantages(rewards, "none")
        else:
            advantages = trainer.algorithm(np.array(rewards))
        samples = [
            TrainingSample(
                row(prompt, token, logprob, trainer.steps), float(advantage), str(n), 1.0, reward, ((place, 1),)
            )
            for n, ((calls, reward), advantage) in enumerate(zip(episodes, advantages, strict=True))
            for place, (prompt, token, logprob) in reversed(list(enumerate(calls)))
        ]
        trainer.step(samples, {})
        if step % 10 == 9:
            found.append(worth(trainer))
            if found[-1] >= 0.985 * TASKS[task][2]:
                break
    return found


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algorithm", [*registry.names("algorithm"), "ppo, own trunk"])
def test_it_comes_within_two_per_cent_of_the_optimum(algorithm, task):
    critic = CriticConfig(backbone="separate", backbone_learning_rate=3e-3) if "own" in algorithm else None
    trainer = made(algorithm.split(",")[0], critic)
    # GSPO's bounds of 3e-4 clip most replies from the second minibatch on: it needs more steps near the optimum.
    found = learn(trainer, task, 400 if algorithm == "gspo" else 150)
    assert found[0] < 0.5 * TASKS[task][2]
    assert found[-1] >= 0.98 * TASKS[task][2], found


def test_the_critic_learns_what_states_are_worth():
    """With the policy as it is, the value of each view nears its expected reward."""
    trainer = made("ppo", CriticConfig(cliprange_value=None, train_backbone=False, learning_rate=3e-2))
    trainer.config = trainer.config.model_copy(update={"learning_rate": 1e-12})
    learn(trainer, "two steps", 60)
    assert trainer.critic is not None
    then = {side: dict(zip(ARMS, odds(trainer, (1, view), ARMS), strict=True)) for side, view in VIEWS.items()}
    expected = [sum(then[side][arm] * DOORS.get((side, arm), 0.0) for arm in ARMS) for side in VIEWS]
    values = [float(v[0]) for v in trainer.critic.values([row((1, view), 10) for view in VIEWS.values()], {})]
    np.testing.assert_allclose(values, expected, atol=0.08)
