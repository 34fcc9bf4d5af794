"""AdamW with its moments, and the policy's master weights, in host memory (`trainer.optimizer_offload`).

Used by `trainer.optimizer` and `trainer.policy`. Between updates only weights and gradients are on the device. An
update copies slices of masters and moments to the device, runs torch's own AdamW on them and copies them back. verl
moves all states to the device for an update; DeepSpeed and torchao update on the CPU, whose results differ in the last
bits. AdamW computes each element separately, so here the results are those without offloading.

Invariant: weights and moments after an update are bit-identical to those of `torch.optim.AdamW` on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

MAX_SLICE = 1 << 24
"""Numbers of a tensor that are on the device at once during an update. A multiple of the vectors of CPU kernels, whose
remainders are rounded differently."""


def host_zeros(shape: torch.Size, device: torch.device) -> Tensor:
    """Return float32 zeros in host memory, pinned if `device`, which they are exchanged with, is a GPU.

    torch rounds the pinned memory of each tensor up to a power of two, unless `PYTORCH_ALLOC_CONF` limits that
    (`pinned_max_round_threshold_mb`).
    """
    return torch.zeros(shape, dtype=torch.float32, pin_memory=device.type == "cuda")


def to_host(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy as `host_zeros` allocates it."""
    return host_zeros(tensor.shape, device).copy_(tensor)


def slices_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return views of at most `MAX_SLICE` numbers that cover a contiguous tensor."""
    return tensor.view(-1).split(MAX_SLICE)


def wait_for_copies(devices: Iterable[torch.device]) -> None:
    """Wait until the copies to host memory that were started on these devices are complete."""
    for device in set(devices):
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()


class OffloadedAdamW(torch.optim.AdamW):
    """AdamW with moments in host memory. Parameters may be there, too.

    Args:
        parameters: Parameter groups, as for `torch.optim.AdamW`.
        holders: For each parameter the tensor on the device whose `.grad` is its gradient.
        settings: Further arguments of `torch.optim.AdamW`.
    """

    def __init__(self, parameters: list[dict[str, Any]], holders: Mapping[Tensor, Tensor], **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self._holders = dict(holders)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for holder in self._holders.values():
            if set_to_none:
                holder.grad = None
            elif holder.grad is not None:
                holder.grad.zero_()

    def host_state(self, parameter: Tensor, value: Tensor) -> Tensor:
        """Return a copy of a moment of this parameter where the optimizer keeps it."""
        return to_host(value, self._holders[parameter].device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters with a gradient. Returns when the results are in host memory."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if self._holders[parameter].grad is not None:
                    self._update(parameter, group)
        wait_for_copies(holder.device for holder in self._holders.values())

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        gradient, state = self._holders[parameter].grad, self.state[parameter]
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = host_zeros(parameter.shape, gradient.device)
        kept = (parameter, state["exp_avg"], state["exp_avg_sq"])
        beta1, beta2 = group["betas"]
        for gradient_S, *kept_S in zip(*map(slices_of, (gradient.contiguous(), *kept)), strict=True):
            moved_S = [part.to(gradient.device, copy=True, non_blocking=True) for part in kept_S]
            step = torch.full((), state["step"].item(), device=gradient.device if group["fused"] else "cpu")
            weight_S, mean_S, square_S = ([part] for part in moved_S)
            adamw(
                weight_S, [gradient_S], mean_S, square_S, [], [step],
                fused=group["fused"], foreach=group["foreach"], amsgrad=False, beta1=beta1, beta2=beta2,
                lr=group["lr"], weight_decay=group["weight_decay"], eps=group["eps"], maximize=False,
            )  # fmt: skip
            for part, moved in zip(kept_S, moved_S, strict=True):
                part.copy_(moved, non_blocking=True)
        state["step"] += 1
