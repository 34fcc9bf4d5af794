"""Extension of vLLM's worker: `--worker-extension-cls deskhand_worker.Extension`. Runs in vLLM's environment.

On CPUs a layer computes with a packed copy of its weights. vLLM's `reload_weights` repacks only the layers in the
checkpoint, so an output layer tied to the embedding would silently keep its old weights.
"""

from __future__ import annotations

from typing import Any


class Extension:
    """Mixin of the worker class."""

    def take_weights(self: Any, weights_path: str) -> None:
        """Load the checkpoint in that folder, including a tied output layer."""
        self.reload_weights(weights_path=weights_path)
        for layer in self.model_runner.get_model().modules():
            if type(layer).__name__ == "ParallelLMHead":
                layer.quant_method.process_weights_after_loading(layer)
