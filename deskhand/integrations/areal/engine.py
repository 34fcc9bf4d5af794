"""AReaL's inference engine as a Deskhand `Engine`.

Used by `workflow`. A request sends expanded ids and one image per span, like AReaL's own vision workflow. AReaL
cannot exclude token ids, so log-probs cover the whole vocabulary, as in AReaL's trainer; the recorder rejects samples
with image ids. `served_ids` are those that AReaL reports as sent. Requests interrupted by a weight update continue
inside AReaL, with a version per token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.integrations.areal.installed_areal import require_areal
from deskhand.types import Completion, Feature, FinishReason, Prompt, Sampling

_FINISH: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "stop", "length": "length"}


class ArealEngine:
    """`Engine` on `InferenceEngine.agenerate`, valid while AReaL runs an episode.

    `max_model_len` limits prompt and reply together; `encoder` encodes recorded images; `lora_name` is the adapter
    that AReaL trains, if it does. Weight updates are up to AReaL: `update_weights`, `pause` and `resume` raise.
    """

    features: frozenset[Feature] = frozenset()

    def __init__(self, engine: Any, encoder: ImageEncoder, max_model_len: int, lora_name: str = "") -> None:
        self._engine, self._encoder, self.max_model_len = engine, encoder, max_model_len
        self._lora_name = lora_name

    @property
    def version(self) -> int:
        return int(self._engine.get_version())

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Raises `AgentError` if the prompt is too long, `InfrastructureError` for any failure of AReaL."""
        if len(prompt.token_ids) >= self.max_model_len:
            raise AgentError(f"prompt of {len(prompt.token_ids)} tokens, the engine's limit is {self.max_model_len}")
        request = await asyncio.to_thread(self._request, prompt, sampling)
        try:
            reply = await self._engine.agenerate(request)
        except Exception as error:
            raise InfrastructureError(f"AReaL's inference engine failed: {type(error).__name__}: {error}") from error
        ids = tuple(int(token) for token in reply.output_tokens)
        if not ids:
            raise InfrastructureError("AReaL's inference engine returned no token")
        stopped = ids[-1] in sampling.stop_ids
        return Completion(
            ids,
            tuple(float(value) for value in reply.output_logprobs),
            tuple(int(version) for version in reply.output_versions),
            "stop" if stopped else _FINISH.get(reply.stop_reason, "aborted"),
            tuple(int(token) for token in reply.input_tokens),
        )

    def _request(self, prompt: Prompt, sampling: Sampling) -> Any:
        """Blocking: encodes images."""
        structures = require_areal("api.io_struct", "an episode on AReaL's engine")
        settings = require_areal("api.cli_args", "an episode on AReaL's engine")
        images = prompt.images or {}
        return structures.ModelRequest(
            input_ids=list(prompt.token_ids),
            image_data=[self._encoder.data_uri(images[span.sha256]) for span in prompt.spans],
            gconfig=settings.GenerationHyperparameters(
                n_samples=1,
                max_new_tokens=sampling.max_tokens,
                max_tokens=self.max_model_len,
                temperature=sampling.temperature or 1.0,
                greedy=sampling.temperature == 0,
                top_p=sampling.top_p,
                stop_token_ids=list(sampling.stop_ids),
                skip_special_tokens=False,
                lora_name=self._lora_name,
            ),
        )

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        raise ConfigError("AReaL publishes its weights itself")

    async def pause(self) -> None:
        raise ConfigError("AReaL pauses its engine itself")

    async def resume(self) -> None:
        raise ConfigError("AReaL resumes its engine itself")

    async def close(self) -> None:
        """Nothing to do: AReaL closes its engine."""
