"""One optimizer update. Invariant: a gradient that is not finite never touches the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deskhand.training.policy import Policy


def make_optimizer(
    parameters: Mapping[str, Tensor], learning_rate: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101); weight decay for matrices only, not for gains, biases and positions."""
    decayed = [parameter for parameter in parameters.values() if parameter.ndim >= 2]
    plain = [parameter for parameter in parameters.values() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=learning_rate, betas=betas, fused=True)


def update(policy: Policy, optimizer: torch.optim.Optimizer, learning_rate: float, max_gradient_norm: float) -> tuple[float, bool]:
    """Clip the gradient to `max_gradient_norm`, update the weights, clear the gradient.

    Returns the norm before clipping, and whether the weights were updated: they are not when the norm is 0 or not finite.
    """
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters().values(), max_gradient_norm).item()
    usable = 0.0 < norm < float("inf")
    if usable:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        with policy.lock:
            optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, usable


def warmup(step: int, warmup_steps: int) -> float:
    """Factor on the learning rate of update `step` (from 0): rises linearly to 1 at update `warmup_steps`."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


@contextlib.contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Use `count` torch threads inside the block; None changes nothing."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)
