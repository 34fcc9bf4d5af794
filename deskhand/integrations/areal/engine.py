"""AReaL's inference engine as an engine of ours. Invariant: ids in, ids out, versions as AReaL stamped them; what AReaL cannot be
told (banned ids, seeds, grammars) is not silently assumed.

A request carries the expanded ids and one picture per span, as AReaL's own vision workflow sends them. AReaL cannot ask its server
to leave ids out, so the log-probs are of the whole vocabulary, as AReaL's trainer computes them, and a sampled picture id is
noticed by the recorder, which stops that sample. AReaL does not hand on which ids were served: `served_ids` are those that it
says it sent. Requests that are interrupted by new weights go on inside of AReaL, each token with its version.
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
    """`engines.base.Engine` over `InferenceEngine.agenerate`, for as long as AReaL runs an episode.

    `context_tokens`: what prompt and reply may have together. `pictures` turns recorded pixels into what is sent. Weights are
    AReaL's business: `publish`, `pause` and `resume` are not for callers here.
    """

    features: frozenset[Feature] = frozenset()

    def __init__(self, engine: Any, pictures: ImageEncoder, context_tokens: int) -> None:
        self._engine, self._pictures, self.context_tokens = engine, pictures, context_tokens

    @property
    def version(self) -> int:
        return int(self._engine.get_version())

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion. Raises `AgentError` when the prompt leaves no room, `InfrastructureError` for whatever AReaL
        raises."""
        if len(prompt.token_ids) >= self.context_tokens:
            raise AgentError(f"prompt of {len(prompt.token_ids)} tokens, the engine holds {self.context_tokens}")
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
        """In a thread: pictures are encoded."""
        structures = require_areal("api.io_struct", "an episode on AReaL's engine")
        settings = require_areal("api.cli_args", "an episode on AReaL's engine")
        images = prompt.images or {}
        return structures.ModelRequest(
            input_ids=list(prompt.token_ids),
            image_data=[self._pictures.data_uri(images[span.sha256]) for span in prompt.spans],
            gconfig=settings.GenerationHyperparameters(
                n_samples=1,
                max_new_tokens=sampling.max_tokens,
                max_tokens=self.context_tokens,
                temperature=sampling.temperature or 1.0,
                greedy=sampling.temperature == 0,
                top_p=sampling.top_p,
                stop_token_ids=list(sampling.stop_ids),
                skip_special_tokens=False,
            ),
        )

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        raise ConfigError("AReaL publishes its weights itself")

    async def pause(self) -> None:
        raise ConfigError("AReaL pauses its engine itself")

    async def resume(self) -> None:
        raise ConfigError("AReaL resumes its engine itself")

    async def close(self) -> None:
        """AReaL closes its engine itself."""
