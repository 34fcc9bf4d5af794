"""float32 masters of weights in half precision. Invariant: no update of a weight and no sum of its gradients is ever rounded to
half precision.

A parameter in float32 is its own master. One in bfloat16 or float16 has a float32 copy: what the backward passes of the
micro-batches leave at the parameter is moved to the copy at once and added up there, the optimizer updates the copy, and
`write_back` rounds it into the parameter. bfloat16 holds 8 bits of a number: an update of less than 1/256 of a weight would
otherwise be lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class MasterWeights:
    """`tensors`: by name, what an optimizer is to update; all of them float32 (or float64) with their gradients in `.grad`."""

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
        """Round the masters into the parameters."""
        for name, parameter in self._parameters.items():
            if self.tensors[name] is not parameter:
                parameter.copy_(self.tensors[name])
