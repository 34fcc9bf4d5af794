"""Data-parallel training of one model in several CPU processes.

Used by `recipes.tiny.build`; start with `run_data_parallel`. On two cores, two processes with one thread each process
nearly twice as many rows as one process with two threads.

Invariant: after each update all processes have the same weights, and all stop at the same step.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn


class DataParallelGroup:
    """One process of the group. Rank 0 prints and saves."""

    def __init__(self, rank: int, size: int, meeting_point: Path) -> None:
        self.rank, self.size = rank, size
        if size > 1:
            distributed.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=size)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replace each gradient by its mean over the group. Missing gradients count as zero."""
        if self.size == 1:
            return
        owners = list(parameters)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in owners])
        distributed.all_reduce(flat)
        flat /= self.size
        for parameter, part in zip(owners, flat.split([p.numel() for p in owners]), strict=True):
            parameter.grad = part.view_as(parameter)

    def seconds(self) -> float:
        """Return the processor time of rank 0, so that all processes stop at the same step."""
        now = torch.tensor([time.process_time()], dtype=torch.float64)
        if self.size > 1:
            distributed.broadcast(now, 0)
        return float(now)


def run_data_parallel(size: int, work: Callable[..., None], *arguments: Any) -> None:
    """Run `work(group, *arguments)` in `size` new processes with one torch thread each, and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_member, (size, Path(folder) / "meeting", work, arguments), nprocs=size)


def _member(rank: int, size: int, meeting_point: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    work(DataParallelGroup(rank, size, meeting_point), *arguments)
    if size > 1:
        distributed.destroy_process_group()
