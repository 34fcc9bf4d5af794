"""Advantages, loss and gradient of every algorithm against an independent float64 reference."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import algorithm_reference as reference
import numpy as np
import pytest
import torch
from algorithm_reference import Episode, Settings

from deskhand import registry
from deskhand.algorithms import ppo
from deskhand.algorithms.base import get_algorithm
from deskhand.algorithms.gigpo import step_advantages
from deskhand.algorithms.objective import clipped_loss, kl_estimate, token_weights
from deskhand.algorithms.reinforce_plus_plus import normalize_over_batch

TOLERANCE = 1e-6
VARIANTS = {
    "defaults": Settings(),
    "dual clip": Settings(dual_clip=1.5),
    "truncated": Settings(cap=1.3, cap_mode="truncate"),
    "dropped": Settings(cap=1.3),
    "no cap": Settings(cap=None),
    "not decoupled": Settings(decoupled=False),
    "penalty k3": Settings(kl_coefficient=0.3),
    "penalty k2": Settings(kl_coefficient=0.3, kl_estimator="k2"),
    "masked on both sides": Settings(cap=1.6, minimum=0.6),
    "truncated on both sides": Settings(cap=1.6, minimum=0.6, cap_mode="truncate"),
    "masked by reply": Settings(cap=3.0, minimum=0.3, level="sequence"),
    "narrow": Settings(clip_low=0.01, clip_high=0.02, dual_clip=1.2, cap=1.1),
    "discounted": Settings(
        discounts={"token_discount": 0.98, "token_lambda": 0.9, "turn_discount": 0.95, "turn_lambda": 0.5}
    ),
}


def tensors(episodes: list[Episode]) -> dict[str, torch.Tensor]:
    """Every quantity of all tokens, float64[N], in the order of episodes."""
    names = [field.name for field in dataclasses.fields(reference.Token)]
    return {
        name: torch.tensor(
            [getattr(token, name) for episode in episodes for token in episode.tokens], dtype=torch.float64
        )
        for name in names
    }


def our_advantages(name: str, episodes: list[Episode], settings: Settings) -> np.ndarray:
    """float64[N] by the project's functions."""
    if name == "ppo":
        found = [estimates(episode, settings).advantages for episode in episodes]
        return ppo.whiten(np.concatenate(found))
    rewards = np.array([episode.reward for episode in episodes]).reshape(3, 4)
    values = np.concatenate([get_algorithm(name)(group) for group in rewards])
    if get_algorithm(name).normalize_batch:
        values = normalize_over_batch(values)
    if (discount := get_algorithm(name).step_discount) is not None:
        groups = [episodes[start : start + 4] for start in range(0, len(episodes), 4)]
        by_reply = [
            own + steps
            for group, owns in zip(groups, values.reshape(3, 4), strict=True)
            for own, steps in zip(
                owns, step_advantages([e.reward for e in group], [e.states for e in group], discount), strict=True
            )
        ]
        return np.repeat(np.concatenate(by_reply), [len(reply) for e in episodes for reply in e.replies])
    return np.repeat(values, [len(episode.tokens) for episode in episodes])


def estimates(episode: Episode, settings: Settings) -> ppo.Estimates:
    rewards = np.zeros(len(episode.tokens))
    rewards[-1] = episode.reward
    turns = np.repeat(np.arange(len(episode.replies)), [len(reply) for reply in episode.replies])
    return ppo.gae(rewards, np.array([token.value for token in episode.tokens]), turns, **settings.discounts)


def our_loss(
    name: str, episodes: list[Episode], settings: Settings, change: Callable[[dict], None] | None = None
) -> torch.Tensor:
    """The whole loss by the project's functions; `change` may spoil what they are given."""
    data = tensors(episodes)
    counts = [len(episode.tokens) for episode in episodes]
    algorithm = get_algorithm(name)
    replies = np.repeat(
        np.arange(sum(len(e.replies) for e in episodes)), [len(reply) for e in episodes for reply in e.replies]
    )
    given = {
        "new": data["new"].requires_grad_(),
        "old": data["behaviour"],
        "advantages": torch.from_numpy(our_advantages(name, episodes, settings)),
        "low": settings.clip_low,
        "high": settings.clip_high,
        "proximal": data["proximal"] if settings.decoupled else None,
        "replies": torch.from_numpy(replies) if algorithm.ratio_level == "reply" else None,
        "divisor": settings.divisor,
        "norm": algorithm.loss_norm,
        "min": settings.minimum,
        "level": settings.level,
        "weighted": torch.from_numpy(replies),
        "loss": algorithm.policy_loss,
        "episodes": [str(number) for number in range(len(episodes))],
        "counts": counts,
        "weights": [episode.weight for episode in episodes],
        "cap": settings.cap,
        "dual": settings.dual_clip,
        "mode": settings.cap_mode,
        "reference": data["reference"],
        "plain": torch.from_numpy(our_advantages("grpo", episodes, settings)),
    }
    if change is not None:
        change(given)
    names = ("new", "old", "advantages", "low", "high", "proximal", "cap", "mode", "dual", "replies")
    more = {"importance_weight_min": given["min"], "importance_weight_level": given["level"]}
    more |= {"weighted_replies": given["weighted"], "policy_loss": given["loss"]}
    result = clipped_loss(*(given[key] for key in names), **more)
    coefficients = token_weights(*(given[key] for key in ("episodes", "counts", "weights", "divisor", "norm")))
    coefficients_N = torch.from_numpy(np.repeat(coefficients, given["counts"]))
    penalty = kl_estimate(given["reference"], given["new"], settings.kl_estimator)
    total = ((result.values + settings.kl_coefficient * penalty) * coefficients_N).sum()
    total.backward()
    given["new"].retain_grad()
    our_loss.gradient = given["new"].grad.numpy().copy()
    return total.detach()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_loss_equals_the_reference(name, variant):
    refused = {"gspo": VARIANTS[variant].level == "sequence", "cispo": VARIANTS[variant].dual_clip is not None}
    if refused.get(name):
        pytest.skip("these settings are refused together")
    for seed in range(8):
        episodes = reference.random_batch(seed)
        ours = our_loss(name, episodes, VARIANTS[variant]).item()
        assert ours == pytest.approx(reference.loss(name, episodes, VARIANTS[variant]), abs=TOLERANCE)


@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_advantages_equal_the_reference(name):
    for seed in range(8):
        episodes = reference.random_batch(seed)
        if name == "ppo":
            for episode in episodes:
                expected, returns = reference.ppo_advantages(episode, VARIANTS["discounted"].discounts)
                found = estimates(episode, VARIANTS["discounted"])
                np.testing.assert_allclose(found.advantages, expected, atol=TOLERANCE)
                np.testing.assert_allclose(found.returns, returns, atol=TOLERANCE)
        else:
            expected = [value for n in range(len(episodes)) for value in reference.token_advantages(name, episodes, n)]
            np.testing.assert_allclose(our_advantages(name, episodes, Settings()), expected, atol=TOLERANCE)


@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_the_gradient_is_the_slope_of_the_references_loss(name):
    """By central differences at some tokens; PPO's advantages come from old values and do not change."""
    settings = Settings(kl_coefficient=0.1, dual_clip=2.0)
    episodes = reference.random_batch(3)
    our_loss(name, episodes, settings)
    gradient, step = our_loss.gradient, 1e-6
    places = [
        (episode, reply, t)
        for episode, e in enumerate(episodes)
        for reply, r in enumerate(e.replies)
        for t in range(len(r))
    ]
    for place in range(0, len(places), 7):
        episode, reply, t = places[place]
        sides = []
        for shift in (step, -step):
            moved = copy.deepcopy(episodes)
            moved[episode].replies[reply][t].new += shift
            sides.append(reference.loss(name, moved, settings, held=episodes))
        assert gradient[place] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-6)


def test_the_value_loss_equals_the_reference():
    for seed in range(8):
        for settings in (Settings(), Settings(value_clip=None), VARIANTS["discounted"]):
            episodes = reference.random_batch(seed)
            data = tensors(episodes)
            returns = torch.from_numpy(np.concatenate([estimates(episode, settings).returns for episode in episodes]))
            counts = [len(episode.tokens) for episode in episodes]
            weights = [episode.weight for episode in episodes]
            coefficients = np.repeat(token_weights([str(n) for n in range(len(counts))], counts, weights), counts)
            losses = ppo.value_loss(data["value_new"], data["value"], returns, settings.value_clip)
            ours = (losses * torch.from_numpy(coefficients)).sum().item()
            assert ours == pytest.approx(reference.value_loss(episodes, settings), abs=TOLERANCE)


BUGS: dict[str, tuple[str, Callable[[dict], None]]] = {
    "bounds swapped": ("grpo", lambda given: given.update(low=given["high"], high=given["low"])),
    "behaviour in place of proximal": ("grpo", lambda given: given.update(proximal=given["old"])),
    "proximal in place of behaviour": ("grpo", lambda given: given.update(old=given["proximal"])),
    "weight of an episode forgotten": ("grpo", lambda given: given.update(weights=[1.0] * len(given["weights"]))),
    "every row an episode of its own": ("grpo", lambda given: given.update(advantages=given["advantages"].flip(0))),
    "sample deviation": ("grpo", lambda given: given.update(advantages=given["advantages"] * np.sqrt(3 / 4))),
    "dual clip forgotten": ("grpo", lambda given: given.update(dual=None)),
    "truncated in place of dropped": ("grpo", lambda given: given.update(mode="truncate")),
    "penalty toward the behaviour": ("grpo", lambda given: given.update(reference=given["old"])),
    "length bias kept": ("dr_grpo", lambda given: given.update(norm="episode")),
    "mean over episodes": ("dapo", lambda given: given.update(norm="episode")),
    "divided by length": ("rloo", lambda given: given.update(norm="episode")),
    "gradient of the weight": ("cispo", lambda given: given.update(loss="clip")),
    "a group's deviation": ("reinforce_plus_plus", lambda given: given.update(advantages=given["advantages"] * 0.9)),
    "no minimum": ("grpo", lambda given: given.update(min=None)),
    "tokens masked alone": ("dapo", lambda given: given.update(level="sequence")),
    "token ratios": ("gspo", lambda given: given.update(replies=None)),
    "replies joined": ("gspo", lambda given: given.update(replies=torch.zeros_like(given["replies"]))),
    "no step advantages": ("gigpo", lambda given: given.update(advantages=given["plain"])),
    "not whitened": ("ppo", lambda given: given.update(advantages=given["advantages"] * 0.9 + 0.1)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_comparison_notices_an_injected_bug(bug):
    name, change = BUGS[bug]
    settings = Settings(dual_clip=None if name == "cispo" else 1.2, kl_coefficient=0.1, cap=1.5, minimum=0.7)
    gaps = []
    for seed in range(4):
        episodes = reference.random_batch(seed)
        gaps.append(abs(our_loss(name, episodes, settings, change).item() - reference.loss(name, episodes, settings)))
    assert max(gaps) > 1e3 * TOLERANCE
