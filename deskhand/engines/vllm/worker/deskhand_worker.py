"""What vLLM's worker learns from Deskhand: `--worker-extension-cls deskhand_worker.Extension`. It runs in vLLM's environment.

Invariant: after `take_weights` every layer computes with the new weights. vLLM's own `reload_weights` leaves one out: on a
processor a layer computes with a packed copy of its weights, which is made anew for the layers that a checkpoint holds, and an
output layer that is tied to the embedding is not in the checkpoint. It would go on with the old weights, without an error.
"""

from __future__ import annotations

from typing import Any


class Extension:
    """Mixed into the worker's class by vLLM."""

    def take_weights(self: Any, weights_path: str) -> None:
        """Load the checkpoint in that folder in place of the weights."""
        self.reload_weights(weights_path=weights_path)
        for layer in self.model_runner.get_model().modules():
            if type(layer).__name__ == "ParallelLMHead":
                layer.quant_method.process_weights_after_loading(layer)
