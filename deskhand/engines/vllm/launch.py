"""How vLLM's server is started. Invariant: it listens on a socket of ours alone, and in the modes that the recorder needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from deskhand.engines.http_engine.endpoint import HttpEndpoint, check_url
from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.lora_versions import MAX_LOADED_LORAS
from deskhand.engines.http_engine.server_process import ServerProcess
from deskhand.engines.vllm.vllm_protocol import EXTENSION, VllmProtocol
from deskhand.errors import ConfigError
from deskhand.models.load import check_checkpoint

_HERE = Path(__file__).parent
_ARCHITECTURES = {"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"}
"""A checkpoint's config.json may leave this out; vLLM would then take it for an embedding model."""
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
"""Variables that the server gets of ours: no keys, no proxies."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Sizes that vLLM has room of."""


def launch_vllm(
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
    """An engine with a vLLM server of its own, which `ServedEngine.start` starts.

    `python` is that of vLLM's environment (`scripts/environment vllm` makes one for processors), `folder` takes its log and the
    weights that are published. `max_images`: images in one prompt. `memory_share`: of a GPU's memory, for all that the server holds
    there; None is vLLM's own. `adapter_rank`: of the adapters that it shall take; None: it takes whole weights. `adapter_tower`:
    whether they are for the vision tower, too. `threads`: on a processor; None is all cores but one. `arguments` go to vLLM as they
    are.
    """
    if not os.access(python, os.X_OK):
        raise ConfigError(
            f"engine.venv_python {python}: no such program; make the environment with scripts/environment vllm"
        )

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
        "PYTHONSAFEPATH": "1",  # the folder of serve.py is no place to import from
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(_HERE / "worker"), *([str(_HERE / "site")] if device == "cpu" else [])]
    )
    if device == "cpu":
        cores = str(threads or max(1, (os.cpu_count() or 2) - 1))
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": cores, "VLLM_CPU_KVCACHE_SPACE": "1"}
        # Nothing is compiled: small helpers that vLLM compiles even in eager mode would cost the first request some 20 s.
        environment |= {"VLLM_TARGET_DEVICE": "cpu", "TORCHDYNAMO_DISABLE": "1"}
    server = ServerProcess(command, environment, folder / "vllm.log")
    return HttpEngine(
        VllmProtocol(ImageEncoder(image_processor)), folder, server=server, version=version, patience=patience
    )


def _adapters(rank: int, tower: bool) -> tuple[str, ...]:
    """Arguments for adapters of that rank: two at a time, so that requests in flight end with theirs."""
    room = next((size for size in _RANKS if size >= rank), None)
    if room is None:
        raise ConfigError(
            f"policy.lora.rank {rank}: vLLM takes adapters of at most {_RANKS[-1]}; lower it, or take engine.backend hf"
        )
    also = ("--enable-tower-connector-lora",) if tower else ()
    return (
        "--enable-lora",
        "--max-lora-rank",
        str(room),
        "--max-loras",
        str(MAX_LOADED_LORAS),
        "--max-cpu-loras",
        str(MAX_LOADED_LORAS),
        *also,
    )


def connect_vllm(
    url: str,
    image_processor: Any,
    folder: Path,
    *,
    api_key: str | None = None,
    version: int = 0,
    patience: ServerTimeouts | None = None,
) -> HttpEngine:
    """An engine on a vLLM server that runs already, started with `VLLM_SERVER_DEV_MODE=1`, `--enable-scale-out` and
    `--logprobs-mode processed_logprobs`; it must be able to read `folder`, where weights are published."""
    endpoint = HttpEndpoint(check_url(url, "engine.base_url"), api_key=api_key)
    return HttpEngine(
        VllmProtocol(ImageEncoder(image_processor)), folder, endpoint=endpoint, version=version, patience=patience
    )
