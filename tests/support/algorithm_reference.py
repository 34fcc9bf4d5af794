"""The algorithms once more, one number at a time in plain Python floats (float64), written from the papers and sharing
no code.

A *batch* is random: groups of episodes of replies of tokens, each token with log-probs under the new, the proximal, the
behaviour and the reference weights and, for PPO, a value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Token:
    new: float
    proximal: float
    behaviour: float
    reference: float
    value: float
    value_new: float
    teacher: float = math.nan


@dataclass
class Episode:
    group: int
    reward: float
    weight: float
    replies: list[list[Token]]
    states: list[str] = field(default_factory=list)
    """What the model saw before each reply; GiGPO alone reads it."""

    @property
    def tokens(self) -> list[Token]:
        return [token for reply in self.replies for token in reply]


@dataclass
class Settings:
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    cap: float | None = 5.0
    cap_mode: str = "mask"
    decoupled: bool = True
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    divisor: float = 64.0
    discounts: dict[str, float] = field(default_factory=dict)
    value_clip: float | None = 0.2
    minimum: float | None = None
    level: str = "token"
    """Of the weight between behaviour and proximal policy: each token, or the product over a reply."""
    rl_weight: float = 1.0
    distill_weight: float = 1.0
    """Of rewards and of the teacher, for tokens that a teacher has scored."""


def random_batch(seed: int) -> list[Episode]:
    """Three groups of four; log-probs that differ enough for every bound to bite."""
    random = np.random.default_rng(seed)

    def token() -> Token:
        new = -abs(random.normal(1, 1))
        proximal, reference = new + random.normal(0, 0.3), new + random.normal(0, 0.5)
        value = random.normal(0.5, 0.5)
        return Token(new, proximal, proximal + random.normal(0, 0.9), reference, value, value + random.normal(0, 0.3))

    episodes = [
        Episode(
            group,
            float(random.choice([0.0, 0.25, 1.0, 1.5])) if group else 0.5,
            float(random.choice([1.0, 0.5])),
            [[token() for _ in range(random.integers(1, 7))] for _ in range(random.integers(1, 5))],
        )
        for group in range(3)
        for _ in range(4)
    ]
    screens = np.random.default_rng([seed, 1])
    for episode in episodes:
        episode.states = [str(screens.choice(["a", "b", "c", "d"])) for _ in episode.replies]
    return episodes


def group_advantage(episodes: list[Episode], episode: Episode, divide: bool) -> float:
    rewards = [other.reward for other in episodes if other.group == episode.group]
    mean = math.fsum(rewards) / len(rewards)
    if max(rewards) - min(rewards) <= 1e-8:
        return 0.0
    if not divide:
        return episode.reward - mean
    return (episode.reward - mean) / (
        math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)) + 1e-6
    )


def step_advantage(episodes: list[Episode], n: int, t: int, discount: float = 0.95) -> float:
    """GiGPO's advantage of reply `t` of an episode among all replies of its group that saw the same screen."""

    def discounted(episode: Episode, step: int) -> float:
        value = episode.reward
        for _ in range(step, len(episode.replies) - 1):
            value *= discount
        return value

    own, alike = episodes[n], []
    for other in episodes:
        if other.group == own.group:
            alike += [discounted(other, u) for u, state in enumerate(other.states) if state == own.states[t]]
    if max(alike) - min(alike) <= 1e-8:
        return 0.0
    mean = math.fsum(alike) / len(alike)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in alike) / len(alike))
    return (discounted(own, t) - mean) / (deviation + 1e-6)


def token_advantages(name: str, episodes: list[Episode], n: int) -> list[float]:
    """One per token of an episode, for the algorithms without a critic."""
    own = episode_advantages(name, episodes)[n]
    return [
        own + (step_advantage(episodes, n, t) if name == "gigpo" else 0.0)
        for t, reply in enumerate(episodes[n].replies)
        for _ in reply
    ]


def episode_advantages(name: str, episodes: list[Episode]) -> list[float]:
    """One per episode, for the algorithms without a critic."""

    def leave_one_out(n: int) -> float:
        others = [other.reward for m, other in enumerate(episodes) if m != n and other.group == episodes[n].group]
        return episodes[n].reward - math.fsum(others) / len(others)

    if name == "rloo":
        return [leave_one_out(n) for n in range(len(episodes))]
    if name == "reinforce_plus_plus":
        found = [episode.reward for episode in episodes]
    elif name == "reinforce_plus_plus_baseline":
        found = [group_advantage(episodes, episode, False) for episode in episodes]
    else:
        return [group_advantage(episodes, episode, name != "dr_grpo") for episode in episodes]
    mean = math.fsum(found) / len(found)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in found) / len(found))
    return [(value - mean) / (deviation + 1e-6) for value in found]


def ppo_advantages(episode: Episode, discounts: dict[str, float]) -> tuple[list[float], list[float]]:
    """(advantages, returns) by the sum of discounted temporal differences, each written out."""
    tokens = episode.tokens
    ends, position = set(), -1
    for reply in episode.replies:
        position += len(reply)
        ends.add(position)

    def factor(t: int, kind: str) -> float:
        return discounts.get(("turn_" if t in ends else "token_") + kind, 1.0)

    deltas = []
    for t, token in enumerate(tokens):
        last = t == len(tokens) - 1
        following = 0.0 if last else tokens[t + 1].value
        deltas.append((episode.reward if last else 0.0) + factor(t, "discount") * following - token.value)
    advantages = []
    for t in range(len(tokens)):
        total, weight = 0.0, 1.0
        for later in range(t, len(tokens)):
            total += weight * deltas[later]
            weight *= factor(later, "discount") * factor(later, "lambda")
        advantages.append(total)
    return advantages, [advantage + token.value for advantage, token in zip(advantages, tokens, strict=True)]


def token_loss(
    advantage: float, log_ratio: float, log_weight: float, settings: Settings, cispo: tuple[float, float] | None = None
) -> float:
    """One token's (or one reply's) clipped loss with its behaviour weight.

    `cispo`: the token's log-prob, and the one at which the clipped ratio is held.
    """
    ratio = math.exp(log_ratio)
    clipped = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
    objective = min(ratio * advantage, clipped * advantage)
    if cispo is not None:
        new, held = cispo
        ratio = math.exp(log_ratio + held - new)
        objective = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high) * advantage * new
    elif settings.dual_clip is not None and advantage < 0:
        objective = max(objective, settings.dual_clip * advantage)
    weight = math.exp(log_weight)
    if settings.cap is not None and weight > settings.cap:
        weight = 0.0 if settings.cap_mode == "mask" else settings.cap
    elif settings.minimum is not None and weight < settings.minimum:
        weight = 0.0 if settings.cap_mode == "mask" else settings.minimum
    return -objective * weight


MEAN_OVER_TOKENS = ("dapo", "cispo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")


def loss(name: str, episodes: list[Episode], settings: Settings, held: list[Episode] | None = None) -> float:
    """The policy's whole loss, penalty included. `held`: where CISPO's weights are taken, for slopes."""
    advantages: dict[int, list[float]] = {}
    for number, episode in enumerate(episodes):
        if name == "ppo":
            advantages[number] = ppo_advantages(episode, settings.discounts)[0]
        else:
            advantages[number] = token_advantages(name, episodes, number)
    if name == "ppo":
        everything = [value for values in advantages.values() for value in values]
        mean = math.fsum(everything) / len(everything)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in everything) / len(everything))
        advantages = {n: [(value - mean) / (deviation + 1e-6) for value in values] for n, values in advantages.items()}
    for number, episode in enumerate(episodes):
        for position, token in enumerate(episode.tokens):
            if not math.isnan(token.teacher):  # minus one sample of the reverse KL divergence
                reverse_kl = token.behaviour - token.teacher
                mixed = settings.rl_weight * advantages[number][position] - settings.distill_weight * reverse_kl
                advantages[number][position] = mixed
    total = 0.0
    for number, episode in enumerate(episodes):
        position, summed = 0, 0.0
        for reply in episode.replies:
            ratios = [token.new - (token.proximal if settings.decoupled else token.behaviour) for token in reply]
            weights = [token.proximal - token.behaviour if settings.decoupled else 0.0 for token in reply]
            if name == "gspo":
                ratios = [math.fsum(ratios) / len(ratios)] * len(reply)
                weights = [math.fsum(weights) / len(weights)] * len(reply)
            if settings.level == "sequence":
                weights = [math.fsum(weights)] * len(reply)
            for token, ratio, weight in zip(reply, ratios, weights, strict=True):
                still = (held or episodes)[number].tokens[position].new
                fixed = (token.new, still) if name == "cispo" else None
                summed += token_loss(advantages[number][position], ratio, weight, settings, fixed)
                difference = token.reference - token.new
                penalty = math.exp(difference) - difference - 1 if settings.kl_estimator == "k3" else difference**2 / 2
                summed += settings.kl_coefficient * penalty
                position += 1
        if name in (*MEAN_OVER_TOKENS, "rloo"):
            total += episode.weight * summed
        else:
            total += episode.weight * summed / (settings.divisor if name == "dr_grpo" else position)
    count = sum(len(episode.tokens) for episode in episodes) if name in MEAN_OVER_TOKENS else len(episodes)
    return total / count


def value_loss(episodes: list[Episode], settings: Settings) -> float:
    """The critic's loss: mean over episodes of the mean over tokens."""
    total = 0.0
    for episode in episodes:
        _, returns = ppo_advantages(episode, settings.discounts)
        losses = []
        for token, target in zip(episode.tokens, returns, strict=True):
            plain = (token.value_new - target) ** 2
            if settings.value_clip is not None:
                moved = min(max(token.value_new - token.value, -settings.value_clip), settings.value_clip)
                plain = max(plain, (token.value + moved - target) ** 2)
            losses.append(plain / 2)
        total += episode.weight * math.fsum(losses) / len(losses)
    return total / len(episodes)
