"""Peak tensor memory of a function, read from the allocator.

Uses torch's caching allocator on a GPU, and the profiler's allocation events of this thread on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def peak_bytes(work: Callable[[], Any], device: str = "cpu") -> int:
    """Run `work` and return the peak bytes above those held before."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(device) - before
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as profiler:
        work()
    found: Any = profiler.profiler
    events = [event for event in found.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
