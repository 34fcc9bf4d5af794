"""What other kernels and transports would gain on a GPU: `python -m benchmarks.gpu_options --full`.

None of them is used by Deskhand. With Qwen3-VL-4B's shapes and random weights:

- decoding one token of 16 sequences as a CUDA graph, and with torch's fused RMS norm, against launching each kernel;
- attention within packed rows by torch's kernels and by the package `flash_attn`, forward and backward;
- a decoder layer under `torch.compile`, forward and backward;
- a copy of all weights into another process by CUDA IPC, against a file.

What the machine or the environment lacks is skipped with the reason. Without a GPU the shapes are tiny.
"""

from __future__ import annotations

import importlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import random_checkpoint
from benchmarks.gpu import tiny_values
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.models import architectures
from deskhand.models.forward import forward_decoder

PAST = 2048
"""Tokens that a decoded token attends to."""
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH)


class Skipped(Exception):
    """A measurement that this machine or environment cannot make; the message is the reason."""


@dataclass(frozen=True)
class Place:
    """Device and sizes."""

    device: str
    dtype: torch.dtype
    values: dict[str, Any]
    batch: int
    rows: tuple[int, ...]
    """Tokens of the rows of a packed micro-batch."""
    repeats: int

    @property
    def is_cuda(self) -> bool:
        return self.device != "cpu"

    def require_cuda(self) -> None:
        if not self.is_cuda:
            raise Skipped("no CUDA device")

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the mean time of `work` after three calls that are not timed."""
        for _ in range(3):
            work()
        self.synchronize()
        began = time.perf_counter()
        for _ in range(self.repeats):
            work()
        self.synchronize()
        return (time.perf_counter() - began) / self.repeats

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


class FixedCache:
    """Keys and values of `PAST` tokens and of one new token, which each pass overwrites."""

    def __init__(self, place: Place) -> None:
        text = place.values["text_config"]
        heads, size = text["num_key_value_heads"], text["head_dim"]
        shape = (2, text["num_hidden_layers"], place.batch, heads, PAST + 1, size)
        self.storage = torch.randn(shape, device=place.device, dtype=place.dtype)

    def update(self, key_BHTD: Tensor, value_BHTD: Tensor, layer: int, *unused: object) -> tuple[Tensor, Tensor]:
        keys, values = self.storage[:, layer]
        keys[:, :, PAST:] = key_BHTD
        values[:, :, PAST:] = value_BHTD
        return keys, values


@torch.no_grad()
def measure_graph(place: Place, model: Any) -> None:
    """Decode one token eagerly, and by replaying a CUDA graph."""
    core, cache = model, FixedCache(place)
    ids_B1 = torch.zeros((place.batch, 1), dtype=torch.int64, device=place.device)
    positions_3B1 = torch.full((3, place.batch, 1), PAST, dtype=torch.int64, device=place.device)

    def decode() -> Tensor:
        return core.lm_head(forward_decoder(core, ids_B1, positions_3B1, cache=cache))

    eager = place.seconds(decode)
    print(f"decoding: {1e3 * eager:.2f} ms a token of {place.batch} sequences with {PAST} tokens each")
    with fused_norms(model):
        fused = place.seconds(decode)
    print(f"decoding, fused norms: {1e3 * fused:.2f} ms, {eager / fused:.2f} times as fast")
    place.require_cuda()
    expected, graph = decode(), torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            decode()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        found = decode()
    replayed = place.seconds(graph.replay)
    difference = float((found.float() - expected.float()).abs().max())
    print(f"decoding, CUDA graph: {1e3 * replayed:.2f} ms, {eager / replayed:.2f} times as fast")
    print(f"logits of the graph: max |difference| {difference:.2e}")


@contextmanager
def fused_norms(model: Any) -> Iterator[None]:
    """Compute the RMS norms of the text model by torch's operator, which is one kernel on a GPU."""
    norms = [module for module in model.model.language_model.modules() if hasattr(module, "variance_epsilon")]
    for norm in norms:
        norm.forward = partial(
            nn.functional.rms_norm, normalized_shape=norm.weight.shape, weight=norm.weight, eps=norm.variance_epsilon
        )
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def measure_attention(place: Place, model: Any) -> None:
    """Attention within the rows of a packed micro-batch, forward and backward, by kernel."""
    text, tokens = place.values["text_config"], sum(place.rows)
    heads, key_heads, size = (text[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    shape = {"device": place.device, "dtype": place.dtype, "requires_grad": True}
    query, key, value = (torch.randn((1, count, tokens, size), **shape) for count in (heads, key_heads, key_heads))
    bounds = [sum(place.rows[:number]) for number in range(len(place.rows) + 1)]

    def by_rows() -> Tensor:
        attention, outputs = nn.functional.scaled_dot_product_attention, list[Tensor]()
        for a, b in pairwise(bounds):
            rows = query[:, :, a:b], key[:, :, a:b], value[:, :, a:b]
            outputs.append(attention(*rows, is_causal=True, enable_gqa=True))
        return torch.cat(outputs, 2)

    def timed(attention: Callable[[], Tensor]) -> float:
        def work() -> None:
            query.grad = key.grad = value.grad = None
            attention().sum().backward()

        return place.seconds(work)

    usual = timed(by_rows)
    print(f"attention: {1e3 * usual:.2f} ms for {len(place.rows)} rows of {tokens} tokens, forward and backward")
    for backend in BACKENDS:
        try:
            with sdpa_kernel(backend), warnings.catch_warnings(action="ignore"):
                seconds = timed(by_rows)
        except RuntimeError as error:
            print(f"attention, {backend.name}: skipped: {first_line(error)}")
            continue
        print(f"attention, {backend.name}: {1e3 * seconds:.2f} ms, {usual / seconds:.2f} times as fast")
    place.require_cuda()
    try:
        package = importlib.import_module("flash_attn")
    except ImportError as error:
        raise Skipped(f"flash_attn: {first_line(error)}") from error
    bounds_R = torch.tensor(bounds, dtype=torch.int32, device=place.device)
    longest = max(place.rows)

    def packed() -> Tensor:
        parts = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        return package.flash_attn_varlen_func(*parts, bounds_R, bounds_R, longest, longest, causal=True)

    seconds = timed(packed)
    difference = float((packed().transpose(0, 1) - by_rows()[0]).abs().max())
    print(f"attention, flash_attn: {1e3 * seconds:.2f} ms, {usual / seconds:.2f} times as fast")
    print(f"output of flash_attn: max |difference| {difference:.2e}")


def measure_compile(place: Place, model: Any) -> None:
    """One decoder layer, forward and backward, as it is and compiled."""
    text, tokens = model.model.language_model, max(place.rows)
    layer = text.layers[0]
    shape = (1, tokens, place.values["text_config"]["hidden_size"])
    hidden = torch.randn(shape, device=place.device, dtype=place.dtype, requires_grad=True)
    positions = torch.arange(tokens, device=place.device).expand(3, 1, tokens)
    with torch.no_grad():
        rotary = text.rotary_emb(hidden, positions)

    def timed(run: Callable[..., Tensor]) -> float:
        def work() -> None:
            run(hidden, position_embeddings=rotary, attention_mask=None).sum().backward()
            layer.zero_grad()

        return place.seconds(work)

    usual = timed(layer)
    print(f"layer: {1e3 * usual:.2f} ms for {tokens} tokens, forward and backward")
    place.require_cuda()
    began = time.perf_counter()
    compiled = torch.compile(layer)
    compiled(hidden, position_embeddings=rotary, attention_mask=None).sum().backward()
    place.synchronize()
    compile_s = time.perf_counter() - began
    seconds = timed(compiled)
    print(f"layer, compiled in {compile_s:.1f} s: {1e3 * seconds:.2f} ms, {usual / seconds:.2f} times as fast")


def receive(device: str, sent: Any, done: Any) -> None:
    """Copy what arrives into tensors of this process: a dictionary of shared tensors, or the path of a file."""
    from safetensors.torch import load_file

    own: dict[str, Tensor] = {}
    while (message := sent.get()) is not None:
        found = load_file(message, device=device) if isinstance(message, str) else message
        for name, tensor in found.items():
            own.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        if device != "cpu":
            torch.cuda.synchronize()
        del found, message
        done.put(len(own))


def measure_transport(place: Place, model: Any) -> None:
    """Give all weights to another process: as shared tensors, which are CUDA IPC on a GPU, and as a file."""
    from safetensors.torch import save_file
    from torch import multiprocessing

    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    total = sum(tensor.nbytes for tensor in tensors.values())
    if place.is_cuda:
        torch.cuda.empty_cache()
    if place.is_cuda and torch.cuda.mem_get_info()[0] < 2.2 * total + 2**30:
        raise Skipped(f"two further copies of {total / 2**30:.1f} GiB do not fit on the GPU")
    context = multiprocessing.get_context("spawn")
    sent, done = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(place.device, sent, done), daemon=True)
    process.start()
    try:
        with tempfile.TemporaryDirectory(prefix="deskhand-weights-") as folder:
            file = Path(folder) / "weights.safetensors"

            def send(by_file: bool) -> float:
                began = time.perf_counter()
                if by_file:
                    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
                sent.put(str(file) if by_file else tensors)
                done.get(timeout=120)
                return time.perf_counter() - began

            for what, by_file in (("shared tensors", False), ("a file", True)):
                seconds = [send(by_file) for _ in range(2)][-1]  # the first time makes room
                size = total / 2**30
                print(f"weights by {what}: {size:.2f} GiB in {1e3 * seconds:.1f} ms ({size / seconds:.1f} GiB/s)")
        sent.put(None)
        process.join(30)
    finally:
        process.kill()
    place.require_cuda()


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


MEASUREMENTS: dict[str, Callable[[Place, Any], None]] = {
    "CUDA graphs": measure_graph,
    "FlashAttention": measure_attention,
    "torch.compile": measure_compile,
    "CUDA IPC": measure_transport,
}


def main() -> None:
    parser = parser_of(__doc__, "on cuda:0, where there is one")
    arguments = parser.parse_args()
    print_head()
    if arguments.size == "full" and torch.cuda.is_available():
        rows = (3072, 2048, 2048, 1024)
        place = Place("cuda:0", torch.bfloat16, architectures.QWEN3_VL_4B, 16, rows, 20)
    else:
        print("no GPU is used: tiny shapes on the processor, which show that the command works and nothing of a GPU")
        place = Place("cpu", torch.float32, tiny_values(), 2, (48, 32), 2)
    model = random_checkpoint.build(place.values, place.device, str(place.dtype).removeprefix("torch."))
    thresholds = Thresholds()
    for name, measure in MEASUREMENTS.items():
        print(f"\n{name}", flush=True)
        try:
            measure(place, model)
        except Skipped as reason:
            print(f"skipped: {reason}")
        except Exception as error:
            thresholds.check(name, False, f"{type(error).__name__}: {first_line(error)}", "no error")
    thresholds.finish()


if __name__ == "__main__":
    main()
