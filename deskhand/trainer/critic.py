"""Critic of PPO: a float32 value head on the hidden states of the policy or of a separate copy of the model.

Used by `trainer.trainer`. With the policy's backbone, the value loss may train the backbone as well. The head is not
pushed to engines.

Invariant: the value of a token is predicted from the state before the token.
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
from deskhand.trainer.optimizer import clip_and_step, make_optimizer, optimizer_step, policy_optimizer
from deskhand.trainer.policy import Policy
from deskhand.types import PreparedImage

Targets = Callable[[TrainBatch], tuple[Tensor, Tensor, Tensor]]
"""Returns, values before the step and loss weights of the tokens of a micro-batch, float32[W] each."""


class Critic:
    """Value predictions for sampled tokens, and their training."""

    def __init__(self, policy: Policy, config: TrainerConfig) -> None:
        self.config: CriticConfig = config.critic
        lm_head = unwrap(policy.model).lm_head
        self.head = torch.nn.Linear(lm_head.in_features, 1, device=lm_head.weight.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.own = policy.copy() if self.config.backbone == "separate" else None
        self.backbone = self.own or policy
        betas = (config.beta1, config.beta2)
        self._heads: dict[str, Tensor] = dict(self.head.named_parameters())
        self.optimizer = make_optimizer(self._heads, self.config.learning_rate, betas, 0.0)
        self.backbone_optimizer = None
        if self.own is not None:
            self.backbone_optimizer = policy_optimizer(self.own, config, self.config.backbone_learning_rate)

    def parts(self) -> Iterator[tuple[str, dict[str, Tensor], torch.optim.Optimizer]]:
        """Yield (name, parameters, optimizer) of the critic's own parameters, for checkpoints."""
        yield "head", self._heads, self.optimizer
        if self.own is not None and self.backbone_optimizer is not None:
            yield "backbone", self.own.parameters(), self.backbone_optimizer

    @torch.no_grad()
    def set_initial_value(self, value: float) -> None:
        """Predict `value` everywhere. Call before the first update, with the mean return."""
        # From a bias of 0 some tokens' values would reach the mean return earlier than others; until then the
        # difference acts as an advantage. One policy unlearned its end-of-turn token this way.
        self.head.bias.fill_(value)

    def values(self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage]) -> list[np.ndarray]:
        """Return the values of each sequence, float32[sampled tokens], under the current weights."""
        return self.backbone.each(sequences, images, lambda _, hidden_WH: self._read(hidden_WH))

    def _read(self, hidden_WH: Tensor) -> Tensor:
        return self.head(hidden_WH.float()).squeeze(-1)

    def loss(self, hidden_WH: Tensor, targets: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the weighted value loss; with a shared backbone it is added to the policy's loss."""
        if not (self.own or self.config.train_backbone):
            hidden_WH = hidden_WH.detach()
        returns_W, values_W, coefficients_W = targets
        losses_W = value_loss(self._read(hidden_WH), values_W, returns_W, self.config.cliprange_value)
        return self.config.vf_coef * (losses_W * coefficients_W).sum()

    def accumulate(
        self, sequences: Sequence[graph.Sequence], images: Mapping[str, PreparedImage], targets: Targets
    ) -> float:
        """Add the gradient of the value loss to the separate backbone; return the loss."""
        assert self.own is not None
        total = 0.0

        def loss(batch: TrainBatch, hidden_WH: Tensor) -> Tensor:
            nonlocal total
            value = self.loss(hidden_WH, targets(batch))
            total += value.item()
            return value

        self.own.accumulate_hidden(self.own.plan(sequences, images), loss)
        return total

    def update(self, warmup: float, max_grad_norm: float) -> None:
        """Update head and backbone, each clipped separately. `warmup`: factor on the learning rates."""
        clip_and_step(self._heads, self.optimizer, self.config.learning_rate * warmup, max_grad_norm)
        if self.own is not None and self.backbone_optimizer is not None:
            optimizer_step(
                self.own, self.backbone_optimizer, self.config.backbone_learning_rate * warmup, max_grad_norm
            )
