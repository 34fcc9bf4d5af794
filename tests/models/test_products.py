"""oneDNN's linear layers equal torch's, in values and gradients, for the shapes and layouts of models."""

from __future__ import annotations

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
@pytest.mark.parametrize("shape", [(7, 24), (2, 5, 24), (1, 24), (3, 1, 2, 24), "transposed"])
def test_values_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...] | str, bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 10, bias=bias)
    input = torch.randn(24, 6).t() if isinstance(shape, str) else torch.randn(shape)
    expected = gradients(layer, input)
    layer.__class__ = fast_layers.OneDnnLinear
    for found, wanted in zip(gradients(layer, input), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


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
