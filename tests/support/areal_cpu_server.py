"""What tests against a real AReaL share: where things are, what its processes are told, and what answers for its GPU
server: SGLang's protocol around our `hf` engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fake_sglang import listening

from deskhand.models.load import LOADING

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "contract" / "areal"


def surroundings() -> dict[str, str]:
    """Of AReaL's processes: our rooms and the tests' helpers by path, nothing from the network, one thread each."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support"), str(HERE)])
    own = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return {**os.environ, **own, "NO_PROXY": "*", "no_proxy": "*", "TOKENIZERS_PARALLELISM": "false"}


@contextmanager
def inference_server(checkpoint: Path | str, context_tokens: int = 1024) -> Iterator[str]:
    """host:port of our server of that checkpoint."""
    from deskhand.integrations.areal.cpu_server import CpuInferenceServer
    from deskhand.models.load import load

    with LOADING:
        serving = CpuInferenceServer(load(str(checkpoint)), context_tokens)
    with listening(serving.app()) as address:
        yield address.removeprefix("http://")
