"""oneDNN's linear layers equal torch's, in values and gradients, for the shapes and layouts of models."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from deskhand.models import fast_layers


def gradients(layer: nn.Linear, input: torch.Tensor) -> list[torch.Tensor]:
    """Output, and gradients of input, weight and bias."""
    input = input.clone().requires_grad_()
    output = layer(input)
    wanted = [input, layer.weight] if layer.bias is None else [input, layer.weight, layer.bias]
    return [output.detach(), *torch.autograd.grad((output * torch.linspace(-1, 1, output.shape[-1])).sum(), wanted)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 24), (2, 5, 24), (1, 24), (3, 1, 2, 24), (17, 24), (5, 13, 24), "transposed"])
def test_values_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...] | str, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 10, bias=bias)
    input = torch.randn(24, 6).t() if isinstance(shape, str) else torch.randn(shape)
    expected = gradients(layer, input)
    layer.__class__ = fast_layers.OneDnnLinear
    for found, wanted in zip(gradients(layer, input), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [16, 17])
def test_an_output_may_be_changed_in_place(rows: int) -> None:
    input = torch.randn(rows, 24, requires_grad=True)
    weight = torch.randn(10, 24)
    output = fast_layers.product(input, weight, None)
    output += 1
    output.sum().backward()
    torch.testing.assert_close(input.grad, weight.sum(0).expand(rows, 24), atol=1e-5, rtol=1e-5)


GROWTH = """
from pathlib import Path
import torch
from deskhand.models.fast_layers import product
from deskhand.recipes.process_memory import memory_metrics, return_freed_memory

def resident_mib():
    return_freed_memory()
    return memory_metrics()["memory/rss_mib"]

torch.set_num_threads(1)
weight = torch.randn(256, 256)
product(torch.randn(2048, 256), weight, None)
before = resident_mib()
for rows in range(17, 600):
    product(torch.randn(rows, 256), weight, None)
print(resident_mib() - before)
"""


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_products_of_many_lengths_keep_little_memory() -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 48


def test_lengths_are_rounded_up_a_little_to_few_numbers() -> None:
    padded = [fast_layers.padded_length(rows) for rows in range(1, 8193)]
    assert all(rows <= found < 2 * rows for rows, found in enumerate(padded, 1))
    assert all(found <= 1.25 * rows for rows, found in enumerate(padded, 1) if rows > 256)
    assert len(set(padded[:2048])) <= 32


def test_a_frozen_weight_gets_no_gradient_and_the_input_does() -> None:
    layer = nn.Linear(24, 10)
    layer.__class__ = fast_layers.OneDnnLinear
    layer.requires_grad_(False)
    input = torch.randn(3, 24, requires_grad=True)
    layer(input).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(input.grad, layer.weight.sum(0).expand(3, 24), atol=1e-5, rtol=1e-5)


def test_other_types_and_an_empty_batch_go_the_usual_way() -> None:
    layer = nn.Linear(24, 10)
    layer.__class__ = fast_layers.OneDnnLinear
    assert layer(torch.randn(0, 24)).shape == (0, 10)
    halved = layer.bfloat16()
    assert halved(torch.randn(3, 24, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_the_processor_decides_and_only_linear_layers_change(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Special(nn.Linear):
        pass

    for vendor, kind in (("AuthenticAMD", fast_layers.OneDnnLinear), ("GenuineIntel", nn.Linear)):
        information = tmp_path / vendor
        information.write_text(f"vendor_id\t: {vendor}\n")
        monkeypatch.setattr(fast_layers, "CPU_INFORMATION", information)
        fast_layers.prefers_onednn.cache_clear()
        model = nn.Sequential(nn.Linear(2, 2), Special(2, 2))
        fast_layers.replace_linear_with_onednn(model)
        assert type(model[0]) is kind
        assert type(model[1]) is Special
    fast_layers.prefers_onednn.cache_clear()
