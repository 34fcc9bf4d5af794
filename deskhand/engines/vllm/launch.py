"""Start of a vLLM server, or connection to a running one. Used by `recipes.engine_factory`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts, connect_server
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.protocol import MAX_LOADED_LORAS
from deskhand.engines.http_engine.server_process import ServerProcess
from deskhand.engines.vllm.vllm_protocol import EXTENSION, VllmProtocol
from deskhand.errors import ConfigError
from deskhand.models.load import check_checkpoint

_HERE = Path(__file__).parent
_ARCHITECTURES = {"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"}
"""Architecture names, because vLLM treats a checkpoint without one in config.json as an embedding model."""
_PASSED = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "HF_HOME",
    "XDG_CACHE_HOME",
)
"""Environment variables passed to the server: no keys, no proxies."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""LoRA ranks supported by vLLM."""


def launch_vllm(  # noqa: PLR0913
    model: str | Path,
    image_processor: Any,
    python: str | Path,
    folder: Path,
    *,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: str = "float32",
    max_tokens: int = 8192,
    max_batch: int = 16,
    max_images: int = 16,
    memory_share: float | None = None,
    adapter_rank: int | None = None,
    adapter_tower: bool = False,
    threads: int | None = None,
    arguments: Sequence[str] = (),
    version: int = 0,
    patience: ServerTimeouts | None = None,
) -> HttpEngine:
    """Return an engine with its own vLLM server, which `HttpEngine.start` launches.

    Args:
        python: Python of vLLM's environment (`scripts/environment vllm` creates one for CPUs).
        folder: Folder for the log and published weights.
        max_images: Maximum images in one prompt.
        memory_share: Share of GPU memory for the server (default: vLLM's).
        adapter_rank: Rank of LoRA adapters; None to publish full weights.
        adapter_tower: Whether adapters include the vision tower.
        threads: CPU threads (default: all cores but one).
        arguments: Additional command-line arguments of vLLM.
    """
    if not os.access(python, os.X_OK):
        raise ConfigError(f"engine.venv_python: {python} is not an executable; create it with scripts/environment vllm")
    _, family = check_checkpoint(str(model))

    def command(socket: str) -> list[str]:
        return [
            *(str(python), str(_HERE / "serve.py")),
            *("--model", str(model), "--served-model-name", "policy", "--uds", socket),
            *("--runner", "generate", "--hf-overrides", f'{{"architectures":["{_ARCHITECTURES[family]}"]}}'),
            *("--dtype", dtype, "--max-model-len", str(max_tokens), "--max-num-seqs", str(max_batch)),
            *("--limit-mm-per-prompt", f'{{"image":{max_images},"video":0}}'),
            *("--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--generation-config", "vllm"),
            *("--worker-extension-cls", EXTENSION, "--disable-uvicorn-access-log"),
            *(("--enforce-eager",) if device == "cpu" else ()),
            *(
                ("--gpu-memory-utilization", f"{memory_share:g}")
                if device == "cuda" and memory_share is not None
                else ()
            ),
            *(_adapters(adapter_rank, adapter_tower) if adapter_rank is not None else ()),
            *arguments,
        ]

    environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
    environment |= {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",  # keeps the folder of serve.py off the import path
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(_HERE / "worker"), *([str(_HERE / "site")] if device == "cpu" else [])]
    )
    if device == "cpu":
        cores = str(threads or max(1, (os.cpu_count() or 2) - 1))
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": cores, "VLLM_CPU_KVCACHE_SPACE": "1"}
        # No compilation: the helpers that vLLM compiles even in eager mode delay the first request by about 20 s.
        environment |= {"VLLM_TARGET_DEVICE": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    server = ServerProcess(command, environment, folder / "vllm.log")
    return HttpEngine(
        VllmProtocol(ImageEncoder(image_processor)), folder, server=server, version=version, patience=patience
    )


def _adapters(rank: int, tower: bool) -> tuple[str, ...]:
    max_rank = next((size for size in _RANKS if size >= rank), None)
    if max_rank is None:
        raise ConfigError(
            f"policy.lora.rank: vLLM supports ranks up to {_RANKS[-1]}, got {rank}; lower it or use engine.backend hf"
        )
    return (
        *("--enable-lora", "--max-lora-rank", str(max_rank)),
        *("--max-loras", str(MAX_LOADED_LORAS), "--max-cpu-loras", str(MAX_LOADED_LORAS)),
        *(("--enable-tower-connector-lora",) if tower else ()),
    )


connect_vllm = partial(connect_server, VllmProtocol)
