"""Matrix products of linear layers on the processor, torch's against oneDNN's: `python -m benchmarks.products --full`.

`models.fast_layers` chooses between them by the processor and the number of rows. Printed for the bundled policy's
layers and one thread: microseconds of the forward pass, of forward and backward, and the ratio torch / oneDNN.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.models.fast_layers import FEW_ROWS, has_onednn_product, prefers_onednn, product
from deskhand.models.load import load

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)


def microseconds(work: Callable[[], Any], repeats: int) -> float:
    """Return the median time of `work` after three calls that are not timed."""
    seconds = []
    for number in range(repeats + 3):
        began = time.perf_counter()
        work()
        if number >= 3:
            seconds.append(time.perf_counter() - began)
    return 1e6 * statistics.median(seconds)


def measure(outputs: int, inputs: int, rows: int, repeats: int) -> tuple[float, float, float, float]:
    """Return the microseconds of torch's and oneDNN's product, forward, then forward and backward."""
    weight, input = torch.randn(outputs, inputs, requires_grad=True), torch.randn(rows, inputs, requires_grad=True)

    def onednn(input: Tensor, weight: Tensor) -> Tensor:
        return product(input, weight, None, few_rows=0)

    found: list[float] = []
    for multiply in (nn.functional.linear, onednn):

        def both(multiply: Callable[[Tensor, Tensor], Tensor] = multiply) -> None:
            weight.grad = input.grad = None
            multiply(input, weight).sum().backward()

        with torch.inference_mode():
            found.append(microseconds(lambda multiply=multiply: multiply(input, weight), repeats))
        found.append(microseconds(both, repeats))
    return found[0], found[2], found[1], found[3]


def main() -> None:
    size = parser_of(__doc__).parse_args().size
    print_head()
    if not has_onednn_product():
        raise SystemExit("this torch has no oneDNN product")
    torch.set_num_threads(1)
    repeats = {"smoke": 1, "small": 15, "full": 101}[size]
    layers = [module for module in load("tiny").model.modules() if isinstance(module, nn.Linear)]
    shapes = sorted({(layer.out_features, layer.in_features) for layer in layers})
    print("| weight | rows | torch, us | oneDNN, us | ratio | with backward: torch | oneDNN | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    ratios: dict[int, list[float]] = {}
    for outputs, inputs in shapes if size == "full" else shapes[:1]:
        for rows in ROWS:
            torch_us, onednn_us, torch_both, onednn_both = measure(outputs, inputs, rows, repeats)
            ratios.setdefault(rows, []).append(torch_us / onednn_us)
            print(
                f"| {outputs} x {inputs} | {rows} | {torch_us:.0f} | {onednn_us:.0f} | {torch_us / onednn_us:.2f} "
                f"| {torch_both:.0f} | {onednn_both:.0f} | {torch_both / onednn_both:.2f} |"
            )
    print()
    thresholds = Thresholds()
    for rows, found in ratios.items():
        is_onednn = prefers_onednn() and rows > FEW_ROWS
        ratio = 1 / statistics.median(found) if is_onednn else statistics.median(found)
        name = f"{rows} rows: {'oneDNN' if is_onednn else 'torch'} is used"
        passed = ratio < 1.1 or size == "smoke"
        thresholds.check(name, passed, f"{ratio:.2f} of the other's time, median of the layers", "< 1.1")
    thresholds.finish()


if __name__ == "__main__":
    main()
