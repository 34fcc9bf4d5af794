"""What oneDNN's products bring the policy in the box on this machine's processor: `python -m benchmarks.onednn_linear`.

Side by side in one run, one thread, random pixels: screens encoded without gradient, as the engine does, and a linear layer forward
and backward, as the trainer does; the median ratio of several rounds. On Intel's processors torch's own library stays in use.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.thresholds import print_head
from benchmarks.training import screenshot
from deskhand.models import forward, onednn_linear
from deskhand.models.load import load

ROUNDS = 7


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(name: str, plain: Callable[[], object], ours: Callable[[], object]) -> None:
    """Print the median times and the median of the ratios, measured in turn."""
    plain(), ours()
    pairs = [(seconds(plain), seconds(ours)) for _ in range(ROUNDS)]
    before, after = (1000 * statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"{name:34} {before:7.1f} ms -> {after:7.1f} ms   {ratio:.2f} times faster")


def main() -> None:
    print_head()
    torch.set_num_threads(1)
    print(f"oneDNN is {'' if onednn_linear.prefers_onednn() else 'not '}in use on this processor")
    model = load("tiny").model
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    pixels, grid = forward.stack_images([screenshot(seed) for seed in range(8)], "cpu")
    assert pixels is not None
    assert grid is not None

    def use(kind: type[torch.nn.Linear]) -> None:
        for module in linears:
            module.__class__ = kind

    @torch.no_grad()
    def encode(kind: type[torch.nn.Linear]) -> None:
        use(kind)
        forward.encode_images(model, pixels, grid)

    rows = torch.randn(4000, 192, requires_grad=True)
    gradient = torch.randn(4000, 576)

    def train(kind: type[torch.nn.Linear]) -> None:
        layer = model.model.language_model.layers[0].mlp.gate_proj
        use(kind)
        layer(rows).backward(gradient)

    compare(
        "eight screens of 256x192 encoded", lambda: encode(torch.nn.Linear), lambda: encode(onednn_linear.OneDnnLinear)
    )
    compare("a linear layer, there and back", lambda: train(torch.nn.Linear), lambda: train(onednn_linear.OneDnnLinear))


if __name__ == "__main__":
    main()
