"""Effective settings of a training step: `trainer.*` with the algorithm's own values. Used by `trainer.trainer`, the
estimates and `recipes.assemble`; start with `ObjectiveSettings.of`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from deskhand.algorithms.base import Algorithm, LossNorm, get_algorithm
from deskhand.config.trainer import TrainerConfig
from deskhand.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ObjectiveSettings:
    """What the config leaves to the algorithm, resolved."""

    algorithm: Algorithm
    num_minibatches: int
    loss_norm: LossNorm
    clip_ratio_low: float
    clip_ratio_high: float
    needs_proximal: bool
    """Whether log-probs under the initial weights of a step are computed, because the current ones will differ."""
    trains_equal_rewards: bool
    """Whether a group with equal rewards has a gradient, by the algorithm or a teacher."""

    @classmethod
    def of(cls, config: TrainerConfig) -> ObjectiveSettings:
        """Resolve the settings. Raises `ConfigError` for one that cannot act."""
        algorithm = get_algorithm(config.algorithm)
        num_minibatches = config.num_minibatches or algorithm.num_minibatches
        _check(config, algorithm, num_minibatches * config.ppo_epochs)
        return cls(
            algorithm,
            num_minibatches,
            config.loss_norm or algorithm.loss_norm,
            algorithm.clip_ratio_low if config.clip_ratio_low is None else config.clip_ratio_low,
            algorithm.clip_ratio_high if config.clip_ratio_high is None else config.clip_ratio_high,
            config.decoupled_loss and config.ppo_epochs * num_minibatches > 1,
            algorithm.trains_equal_rewards or config.distillation is not None,
        )


def _check(config: TrainerConfig, algorithm: Algorithm, num_updates: int) -> None:
    several = "set trainer.num_minibatches above 1, or trainer.decoupled_loss to false"
    if config.decoupled_loss and num_updates == 1:
        for name in ("clip_ratio_low", "clip_ratio_high", "dual_clip"):
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"trainer.{name}: cannot act with one update per step and decoupled_loss, where every ratio is 1; "
                    f"{several}"
                )
        if algorithm.ratio_level == "reply":
            raise ConfigError(
                f"trainer.num_minibatches: {algorithm.name} with one update per step and decoupled_loss has no ratio "
                f"but 1; {several}"
            )
    if not config.decoupled_loss:
        for name in ("importance_weight_min", "importance_weight_level", "importance_weight_mode"):
            if getattr(config, name) != getattr(_DEFAULTS, name):
                raise ConfigError(f"trainer.{name}: acts only with decoupled_loss; set trainer.decoupled_loss to true")
    if algorithm.ratio_level == "reply" and config.importance_weight_level == "sequence":
        raise ConfigError(
            f"trainer.importance_weight_level: {algorithm.name} weighs replies by geometric means; remove it"
        )
    if algorithm.ratio_level == "reply" and config.distillation is not None:
        raise ConfigError(
            f"trainer.distillation: {algorithm.name} has one ratio for a whole reply, but a teacher's advantages are "
            "of tokens; choose another trainer.algorithm"
        )
    if algorithm.policy_loss == "cispo" and config.dual_clip is not None:
        raise ConfigError("trainer.dual_clip: cispo bounds every weight itself; remove it")
    if config.min_lr_ratio and config.lr_scheduler_type == "constant":
        raise ConfigError("trainer.min_lr_ratio: needs a schedule; set trainer.lr_scheduler_type to linear or cosine")


_DEFAULTS = TrainerConfig()


def lr_factor(kind: Literal["constant", "linear", "cosine"], progress: float, minimum: float = 0.0) -> float:
    """Return the learning-rate factor of a schedule at `progress` in [0, 1] of the training.

    cosine: `minimum + (1 - minimum) * (1 + cos(pi * progress)) / 2` (Loshchilov and Hutter, arXiv:1608.03983, eq. 5).
    """
    progress = min(1.0, max(0.0, progress))
    falling = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}[kind]
    return minimum + (1.0 - minimum) * falling
