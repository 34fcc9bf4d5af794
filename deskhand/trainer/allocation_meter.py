"""Meter of the memory that torch tensors hold.

Used by `trainer.meta_trace`. It works on real tensors and on the meta device, which has shapes but no memory, so the
peak of a computation is known without running it. Allocations inside kernels are not counted.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class AllocationMeter(TorchDispatchMode):
    """Context that counts bytes of new storages: `live` now, and `peak`.

    Each storage counts once, until it is freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return result

    def ignore(self, *tensors: torch.Tensor) -> None:
        """Do not count these existing tensors when an operation returns them."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = weakref.ref(storage)

    def reset_peak(self) -> None:
        self.peak = self.live

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known is not None and known() is not None:
            return
        self.live += size
        self.peak = max(self.peak, self.live)

        def freed(_: Any) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
