"""Print torch's threads and whether it finds a GPU. Run as a program by `doctor.check_machine`.

Loads only torch's native libraries, which are what fails to load on a machine. Most of the time of `import torch` goes
into Python modules that this does not need.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from typing import Any


def native_torch() -> Any:
    """Return `torch._C` without the rest of torch, which this process cannot import afterwards."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    if spec is None:
        raise ModuleNotFoundError("No module named 'torch'")
    package = types.ModuleType("torch")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["torch"] = package
    return importlib.import_module("torch._C")


def describe(native: Any) -> str:
    """Return the threads and GPU of `torch._C`, as in "2 threads, no GPU"."""
    count = getattr(native, "_cuda_getDeviceCount", None)  # absent from torch for CPUs
    return f"{native.get_num_threads()} threads, {'a' if count is not None and count() else 'no'} GPU"


if __name__ == "__main__":
    print(describe(native_torch()))
