"""Make torchvision importable with a CPU build of torch, in every process of vLLM's environment.

The published torchvision is built for CUDA: its library does not load, and its Python part fails because two operators
are undeclared. Declaring them is enough for vLLM, which only resizes in plain torch. Python imports a module with this
name automatically if its folder is on the path.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Any

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares the operators before torchvision is imported; finds no modules itself."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            library = importlib.import_module("torch").library
            for name in _OPERATORS:
                library.define(f"torchvision::{name}", _SIGNATURE)
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
