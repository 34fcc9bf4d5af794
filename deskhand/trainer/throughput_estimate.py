"""Estimate of the training and sampling throughput of a run.

Used by `recipes.plan`; start with `estimate_throughput`. Training and prefill take two floating-point operations per
weight and token (Kaplan et al., arXiv:2001.08361, section 2.1) plus attention (linear attention, about 1 %, is left
out); sampling reads the weights and the cache once per token, and replaces the states of linear attention. Peaks are
the dense ones of the data sheets; the fractions of them were measured (`GPU_FLOPS_SHARE`, `CPU_FLOPS_SHARE`,
`BANDWIDTH_SHARE`) and are printed with the result. Seconds are those of a device that does nothing else:
`trainer.rollout_estimate` adds that engine and trainer share it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deskhand.config.trainer import PolicyConfig, TrainerConfig
from deskhand.errors import ConfigError
from deskhand.models import architectures
from deskhand.trainer.memory_estimate import BYTES, GIB, MemoryEstimate, Workload, numbers_per_token
from deskhand.trainer.objective_settings import ObjectiveSettings

GPU_FLOPS_SHARE = 0.32
"""Fraction of a GPU's peak operations in training, prefill and the vision tower. A decoder layer of Qwen3-VL-4B took
5.92 ms for 3,072 tokens, forward and backward, on an H200 (`benchmarks.gpu_options`): a bound for a whole step."""
CPU_FLOPS_SHARE = 0.5
"""Fraction of a CPU's peak in these three, that is, of the matrix product that `device_of` measures: about half in
steps of the bundled policy. The demo's recorded rates are met with it (`tests/trainer/test_rollout_estimate.py`)."""
BANDWIDTH_SHARE = 0.34
"""Fraction of the memory bandwidth in decoding. A decoding step of Qwen3-VL-4B for 16 sequences of 2,048 tokens took
8.5 ms as a CUDA graph on an H200 (`benchmarks.gpu_options`). vLLM has not been measured on a GPU."""
LAUNCH_S = 1.2e-3
"""Time to launch the kernels of one decoder layer in a decoding step of the `hf` engine, one by one: 43.5 ms were
measured for 36 layers on a machine with an H200 (`benchmarks.gpu_options`)."""


@dataclass(frozen=True)
class Device:
    """Operations per second in 16 bits (`half`) and 32 bits (`single`), and bytes per second; 0 if unknown."""

    name: str
    half: float = 0.0
    single: float = 0.0
    bandwidth: float = 0.0
    memory: float | None = None

    def flops(self, dtype: str) -> float:
        return self.single if dtype == "float32" else self.half


GPUS = {
    "H200": Device("H200", 989e12, 67e12, 4.8e12),
    "H100": Device("H100", 989e12, 67e12, 3.35e12),
    "A100": Device("A100", 312e12, 19.5e12, 2.04e12),
    "L40S": Device("L40S", 362e12, 91.6e12, 0.864e12),
    "L4": Device("L4", 121e12, 30.3e12, 0.3e12),
    "4090": Device("4090", 165e12, 82.6e12, 1.01e12),
    "3090": Device("3090", 71e12, 35.6e12, 0.936e12),
}
"""Devices by a part of the driver's name."""


def device_of(device: str, gpu: str | None = None, threads: int | None = None) -> Device:
    """Return the data of a torch device, or of a GPU by name; of a CPU, with so many threads (None: torch's setting).

    Raises `ConfigError` if it is unknown.
    """
    if gpu is not None:
        if gpu not in GPUS:
            raise ConfigError(f"--gpu: unknown GPU {gpu}; choose one of {', '.join(GPUS)}")
        return GPUS[gpu]
    if device == "cpu":
        return _cpu(threads)
    import torch

    if not torch.cuda.is_available():
        return Device(device)
    try:
        found = torch.cuda.get_device_properties(device)
    except (AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"device: {device} is not available ({str(error).splitlines()[0]}); choose another device"
        ) from None
    known = next((each for name, each in GPUS.items() if name in found.name), Device(found.name))
    return Device(found.name, known.half, known.single, known.bandwidth, float(found.total_memory))


def _cpu(threads: int | None) -> Device:
    """Measure a matrix product and a copy of one thread, in its CPU time, which other load hardly changes."""
    import torch

    from deskhand.models.fast_layers import prefers_onednn, product
    from deskhand.trainer.optimizer import torch_threads

    left, copied, copy = torch.randn(512, 512), torch.zeros(2**22), torch.zeros(2**22)
    multiply = (lambda: product(left, left, None)) if prefers_onednn() else (lambda: torch.mm(left, left))
    with torch_threads(1), torch.no_grad():
        product_s, copy_s = _least_s(multiply), _least_s(lambda: copy.copy_(copied))
    count = threads or torch.get_num_threads()
    return Device("cpu", 0.0, count * 2 * 512**3 / product_s, 2 * copied.nbytes / copy_s, _available())


def _least_s(work: Callable[[], Any]) -> float:
    """Return the least CPU time of 30 calls."""
    spent = []
    for _ in range(30):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return min(spent)


def _available() -> float | None:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return None


@dataclass(frozen=True)
class ThroughputEstimate:
    """Estimated speed; tokens exclude padding."""

    flops_per_token: float
    """Operations of one training pass per token, including its share of the screenshots."""
    train_tokens_per_s: float
    step_s: float
    sample_tokens_per_s: float
    assumed: str
    prefill_s: float = 0.0
    """Seconds of the engine's prefill for the episodes that are played during a step, each token once."""
    vision_s: float = 0.0
    """Seconds in which the engine encodes their screenshots, each once."""
    token_s: float = 0.0
    """Seconds of a decoding step, in which each request that decodes gets a token."""

    def lines(self) -> Iterator[str]:
        rate = f"{self.train_tokens_per_s:.0f} tokens/s, {self.step_s:.1f} s per step"
        yield f"training: {self.flops_per_token / 1e9:.3g} GFLOP per token, {rate}"
        parts = f"prefill {self.prefill_s:.3g} s, screenshots {self.vision_s:.3g} s per step"
        yield f"sampling: {self.sample_tokens_per_s:.0f} tokens/s; {parts}"
        yield f"assumed: {self.assumed}"


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations of one pass over the sequences and screenshots of a step."""

    forward: float
    backward: float
    tower: float
    """Operations of the vision tower, forward and, if trained, backward."""
    encoding: float
    """Operations of the vision tower forward."""
    attention: float
    """Part of all these that attention takes."""

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.tower


def operations(values: dict[str, Any], memory: MemoryEstimate, work: Workload, *, adapters: bool) -> FlopCount:
    """Count the operations of one gradient of a step, without recomputation.

    A matrix takes 2 operations per weight forward and 2 (frozen) or 4 (trained) backward; a token is computed by some
    of the experts. Attention takes twice as much
    backward as forward. The head runs on sampled tokens only; each screenshot is encoded once.
    """
    text, vision = values["text_config"], values["vision_config"]
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    tokens = work.step_rows * work.row_tokens
    sampled = work.step_rows * work.turns_in_row * work.reply_tokens
    embedding = text["vocab_size"] * text["hidden_size"]
    idle = memory.traced.experts * (1 - architectures.expert_share(values))
    matrices = memory.traced.parameters - idle - embedding * (1 if values.get("tie_word_embeddings") else 2)
    products = 2 * matrices * tokens + 2 * embedding * sampled
    layers = len(architectures.attention_layers(values))
    attention = 2 * tokens * work.row_tokens * text["num_attention_heads"] * head * layers
    learning = 2 * memory.traced.trained * tokens if adapters else 0
    forward = products + attention + learning
    backward = products * (1 if adapters else 2) + 2 * attention + 2 * learning
    everywhere = len(vision.get("fullatt_block_indexes") or range(vision["depth"]))
    vision_attention = work.step_images * 4 * work.patches**2 * vision["hidden_size"] * everywhere
    tower = work.step_images * 2 * memory.tower.parameters * work.patches + vision_attention
    passes = 1 if not memory.tower.trained else 2 if adapters else 3
    return FlopCount(forward, backward, tower * passes, tower, 3 * attention + vision_attention * passes)


def estimate_throughput(
    values: dict[str, Any], policy: PolicyConfig, trainer: TrainerConfig, dtype: str, requests: int,
    memory: MemoryEstimate, work: Workload, device: Device, *, in_process: bool,
) -> ThroughputEstimate:  # fmt: skip
    """Estimate the rates of training and of sampling with so many concurrent `requests`, which read half of the longest
    sequence on average. `in_process`: the engine is `hf`, which launches the kernels of a decoding step one by one, and
    whose image features the trainer uses if the tower is frozen."""
    tokens = work.step_rows * work.row_tokens
    done = operations(values, memory, work, adapters=policy.lora is not None)
    objective = ObjectiveSettings.of(trainer)
    has_critic = objective.algorithm.uses_critic
    scored = objective.needs_proximal + (trainer.kl_loss_coef > 0) + has_critic
    again = done.forward * (trainer.ppo_epochs * policy.gradient_checkpointing + scored)
    if has_critic and trainer.critic.backbone == "separate":
        again += (done.forward * (1 + policy.gradient_checkpointing) + done.backward) * trainer.ppo_epochs
    share = CPU_FLOPS_SHARE if device.name == "cpu" else GPU_FLOPS_SHARE
    peak = share * device.flops(dtype)
    tower = 0.0 if in_process and not memory.tower.trained else done.tower
    step_s = ((done.forward + done.backward + tower) * trainer.ppo_epochs + again) / peak
    states = 2 * architectures.state_shapes(values).bytes(BYTES[dtype])
    cache = requests * (work.row_tokens / 2 * numbers_per_token(values) * BYTES[dtype] + states)
    weights = next(term.bytes for term in memory.terms if term.name == "weights")
    unread = (1 - architectures.expert_share(values)) ** requests  # each request uses experts of its own
    weights -= unread * memory.traced.experts * BYTES[dtype]
    launch = LAUNCH_S * values["text_config"]["num_hidden_layers"] * in_process
    token_s = max((weights + cache) / (BANDWIDTH_SHARE * device.bandwidth), launch)
    assumed = (
        f"{100 * share:.0f} % of {device.flops(dtype) / 1e12:.3g} TFLOP/s in training and prefill, "
        f"{100 * BANDWIDTH_SHARE:.0f} % of {device.bandwidth / GIB:.0f} GiB/s"
        f"{f' and at least {1e3 * launch:.1f} ms per token' if launch else ''} in sampling, "
        f"{requests} concurrent requests"
    )
    sampled = work.step_episodes * work.turns * work.reply_tokens
    played = work.num_played / work.step_episodes
    prefill_s = played * done.forward * max(0.0, 1 - sampled / tokens) / peak
    return ThroughputEstimate(
        done.total / tokens, tokens * trainer.ppo_epochs / step_s, step_s, requests / token_s, assumed,
        prefill_s, played * done.encoding / peak, token_s,
    )  # fmt: skip
