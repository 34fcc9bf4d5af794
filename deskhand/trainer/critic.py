"""The critic of PPO. Invariant: a value is that of the state in which a token was sampled: it is read before the token is seen.

A linear head, float32, on hidden states: the policy's own (then the value loss may teach the trunk too), or those of a second
copy of the model that is trained on values alone. The head's weight begins at 0 and its bias at the mean return of the first step:
from a bias of 0 the values of some tokens rise to that mean sooner than those of others, and until all have arrived the difference
speaks for or against tokens whatever became of their episodes. (A policy forgot how to end its replies by that.) The head is never
published: an engine has no use for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from deskhand.algorithms.ppo import value_loss
from deskhand.config.trainer import CriticConfig, TrainerConfig
from deskhand.models.forward import unwrap
from deskhand.recorder import graph
from deskhand.trainer.batch import TrainBatch
from deskhand.trainer.optimizer import clip_and_step, make_optimizer, optimizer_step
from deskhand.trainer.policy import Policy
from deskhand.types import PreparedImage

Targets = Callable[[TrainBatch], tuple[Tensor, Tensor, Tensor]]
"""For the tokens of a micro-batch: returns, values before the step, coefficients, float32[W] each."""


class Critic:
    """Values for the sampled tokens of rows, and their training. `policy`: whose hidden states or whose copy it reads."""

    def __init__(self, policy: Policy, config: TrainerConfig) -> None:
        self.config: CriticConfig = config.critic
        lm_head = unwrap(policy.model).lm_head
        self.head = torch.nn.Linear(lm_head.in_features, 1, device=lm_head.weight.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.own = policy.copy() if self.config.backbone == "separate" else None
        self.trunk = self.own or policy
        betas = (config.beta1, config.beta2)
        self._heads: dict[str, Tensor] = dict(self.head.named_parameters())
        self.optimizer = make_optimizer(self._heads, self.config.learning_rate, betas, 0.0)
        self.trunk_optimizer = None
        if self.own is not None:
            rate = self.config.backbone_learning_rate
            self.trunk_optimizer = make_optimizer(
                self.own.parameters(), rate, betas, config.weight_decay, config.optimizer
            )

    def parts(self) -> Iterator[tuple[str, dict[str, Tensor], torch.optim.Optimizer]]:
        """What belongs to the critic alone, for checkpoints: a name, parameters by name, their optimizer."""
        yield "head", self._heads, self.optimizer
        if self.own is not None and self.trunk_optimizer is not None:
            yield "trunk", self.own.parameters(), self.trunk_optimizer

    @torch.no_grad()
    def begin(self, value: float) -> None:
        """Let every value be `value`, before the first update."""
        self.head.bias.fill_(value)

    def values(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        """For each row float32[sampled tokens], under the weights of now."""
        return self.trunk.each(sequences, images, lambda _, hidden_WH: self._read(hidden_WH))

    def _read(self, hidden_WH: Tensor) -> Tensor:
        return self.head(hidden_WH.float()).squeeze(-1)

    def loss(self, hidden_WH: Tensor, targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """The value loss of tokens, times `coefficient`: on the policy's own hidden states it is added to the policy's loss."""
        if not (self.own or self.config.train_backbone):
            hidden_WH = hidden_WH.detach()
        returns_W, values_W, coefficients_W = targets
        losses_W = value_loss(self._read(hidden_WH), values_W, returns_W, self.config.cliprange_value)
        return self.config.vf_coef * (losses_W * coefficients_W).sum()

    def accumulate(
        self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage], targets: Targets
    ) -> float:
        """Add the gradient of the value loss to a trunk of its own; returns the loss."""
        assert self.own is not None
        total = 0.0

        def loss(batch: TrainBatch, hidden_WH: Tensor) -> Tensor:
            nonlocal total
            value = self.loss(hidden_WH, targets(batch))
            total += value.item()
            return value

        self.own.accumulate_hidden(self.own.plan(sequences, images), loss)
        return total

    def update(self, warmth: float, max_gradient_norm: float) -> None:
        """One update of head and trunk, each clipped to its own norm. `warmth`: factor on the learning rates."""
        clip_and_step(self._heads, self.optimizer, self.config.learning_rate * warmth, max_gradient_norm)
        if self.own is not None and self.trunk_optimizer is not None:
            optimizer_step(
                self.own, self.trunk_optimizer, self.config.backbone_learning_rate * warmth, max_gradient_norm
            )
