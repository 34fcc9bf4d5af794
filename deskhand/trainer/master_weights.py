"""float32 master copies of bfloat16 and float16 weights.

Used by `trainer.policy`. Gradients of micro-batches are moved to the master and accumulated there in float32, the
optimizer updates the master, and `sync_to_model` casts it back. In bfloat16 an update below 1/256 of a weight would be
lost. A float32 parameter is its own master.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class MasterWeights:
    """Master weights. `tensors` holds the tensors to optimize by name, in float32 or float64, with gradients in
    `.grad`."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = dict(parameters)
        self.tensors: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            half = parameter.dtype in (torch.bfloat16, torch.float16)
            self.tensors[name] = parameter.detach().float().clone().requires_grad_() if half else parameter
            if half:
                parameter.register_post_accumulate_grad_hook(self._collector(self.tensors[name]))

    @staticmethod
    def _collector(master: Tensor):
        def collect(parameter: Tensor) -> None:
            if parameter.grad is None:
                return
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

        return collect

    @torch.no_grad()
    def sync_to_model(self) -> None:
        """Cast the masters into the parameters."""
        for name, parameter in self._parameters.items():
            if self.tensors[name] is not parameter:
                parameter.copy_(self.tensors[name])
