"""Optimizers and one optimizer update.

Used by `trainer.trainer`, `trainer.critic` and `trainer.supervised`.

Invariant: a gradient that is not finite never changes the weights.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from deskhand.config.trainer import OptimizerName, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.trainer.muon import MuonAdamW
from deskhand.trainer.offload import OffloadedAdamW
from deskhand.trainer.policy import Policy


def policy_optimizer(policy: Policy, config: TrainerConfig, learning_rate: float) -> torch.optim.Optimizer:
    """Return the optimizer of a policy's weights, or of a critic's backbone. `trainer.optimizer_offload` moves the
    policy's masters to host memory. Raises like `make_optimizer`."""
    if config.optimizer_offload:
        policy.offload_masters()
    parameters, holders = policy.parameters(), policy.gradient_holders()
    return make_optimizer(
        parameters, learning_rate, (config.beta1, config.beta2), config.weight_decay, config.optimizer,
        holders={parameters[name]: holder for name, holder in holders.items()} if config.optimizer_offload else None,
    )  # fmt: skip


def make_optimizer(
    parameters: Mapping[str, Tensor],
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    kind: OptimizerName = "adamw_fused",
    holders: Mapping[Tensor, Tensor] | None = None,
) -> torch.optim.Optimizer:
    """Return AdamW (arXiv:1711.05101) with weight decay for matrices only, not for gains, biases and positions.

    "muon" is `MuonAdamW`. "adamw_8bit" stores its moments in 8 bits (arXiv:2110.02861). With `holders` (of
    `OffloadedAdamW`) the moments are in host memory. Raises `ConfigError` if bitsandbytes cannot be loaded.
    """
    if kind == "muon":
        return MuonAdamW(parameters, learning_rate, betas, weight_decay)
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for parameter in parameters.values():
        groups[parameter.ndim < 2]["params"].append(parameter)
    groups = [group for group in groups if group["params"]]
    if holders is not None and kind != "adamw_8bit":
        return OffloadedAdamW(groups, holders, lr=learning_rate, betas=betas, fused=kind == "adamw_fused")
    if kind != "adamw_8bit":
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=kind == "adamw_fused")
    if any(parameter.device.type == "cpu" for parameter in parameters.values()):
        raise ConfigError("trainer.optimizer: adamw_8bit needs a GPU; use adamw_fused")
    try:
        library: Any = importlib.import_module("bitsandbytes.optim")
    except (ImportError, RuntimeError, OSError) as error:
        why = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"trainer.optimizer: adamw_8bit needs bitsandbytes ({why}); pip install bitsandbytes"
        ) from error
    return library.AdamW8bit(groups, lr=learning_rate, betas=betas)


def optimizer_step(
    policy: Policy, optimizer: torch.optim.Optimizer, learning_rate: float, max_grad_norm: float
) -> tuple[float, bool]:
    """Clip the gradient, update the policy's weights and clear the gradient.

    Return the norm before clipping and whether the weights were updated; they are not if it is 0 or not finite.
    """

    def step() -> None:
        with policy.lock:
            optimizer.step()
            policy.write_back()

    return clip_and_step(policy.gradient_holders(), optimizer, learning_rate, max_grad_norm, step)


def clip_and_step(
    holders: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    learning_rate: float,
    max_grad_norm: float,
    step: Callable[[], Any] | None = None,
) -> tuple[float, bool]:
    """Do the same for any optimizer; `holders` have the gradients, `step` replaces `optimizer.step`."""
    norm = torch.nn.utils.clip_grad_norm_(holders.values(), max_grad_norm).item()
    usable = 0.0 < norm < float("inf")
    if usable:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        (step or optimizer.step)()
    optimizer.zero_grad(set_to_none=True)
    return norm, usable


def warmup_factor(step: int, warmup_steps: int) -> float:
    """Return the learning-rate factor of update `step` (from 0): linear to 1 at update `warmup_steps`."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Use `count` torch threads in the body; None changes nothing."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)
