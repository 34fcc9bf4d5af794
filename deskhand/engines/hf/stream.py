"""CUDA stream of the engine, and its order with the stream of a trainer on the same GPU. Used by `hf.engine`.

On one stream, a decoding step would wait for all kernels that the trainer has queued, up to a whole training step. On a
stream of its own with high priority, the engine's kernels start as soon as the GPU has room. Streams are not ordered,
so whatever both use is ordered here by events; no host thread waits. On other devices nothing here has an effect.

Invariant: weights are changed after the engine's last use of them, and used after the last change.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_HIGH_PRIORITY = -1


class EngineStream:
    """Stream of one engine. The *caller's stream* is the current stream of the thread that calls a method."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device, priority=_HIGH_PRIORITY) if device.type == "cuda" else None
        self._trainer: torch.cuda.Stream | None = None
        """Caller's stream of the last `wait_for_engine`."""

    def current(self) -> AbstractContextManager[object]:
        """Return a context in which the calling thread's work goes to the engine's stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def wait_for_engine(self) -> None:
        """Let later work of the caller's stream start after all earlier work of the engine."""
        if self._stream is not None:
            self._trainer = torch.cuda.current_stream(self._device)
            self._trainer.wait_stream(self._stream)

    def wait_for_caller(self) -> None:
        """Let later work of the engine start after all earlier work of the caller's stream, and of the stream that
        last waited for the engine."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            if self._trainer is not None:
                self._stream.wait_stream(self._trainer)

    def lend(self, tensors: Iterable[Tensor]) -> None:
        """Let the caller's stream read tensors of the engine: later work starts after the engine's earlier work, and
        their memory is not reused before the caller's work is done, even if the engine drops them."""
        if self._stream is None:
            return
        caller = torch.cuda.current_stream(self._device)
        caller.wait_stream(self._stream)
        for tensor in tensors:
            tensor.record_stream(caller)

    def finish(self) -> None:
        """Block until all work of the engine is done."""
        if self._stream is not None:
            self._stream.synchronize()
