"""Extension of vLLM's worker: `--worker-extension-cls deskhand_worker.Extension`. Runs in vLLM's environment.

On CPUs a layer computes with a packed copy of its weights. vLLM's `reload_weights` repacks only the layers in the
checkpoint, so an output layer tied to the embedding would silently keep its old weights; and it packs experts only with
a new kernel, so they would be read as if they were packed.
"""

from __future__ import annotations

from typing import Any


class Extension:
    """Mixin of the worker class."""

    def take_weights(self: Any, weights_path: str) -> None:
        """Load the checkpoint in that folder, including experts and a tied output layer."""
        layers = list(self.model_runner.get_model().modules())
        if next(layers[0].parameters()).device.type == "cpu":
            for layer in layers:
                method: Any = getattr(layer, "quant_method", None)
                if hasattr(method, "moe_kernel"):
                    method.moe_kernel = None
        self.reload_weights(weights_path=weights_path)
        for layer in layers:
            if type(layer).__name__ == "ParallelLMHead":
                layer.quant_method.process_weights_after_loading(layer)
