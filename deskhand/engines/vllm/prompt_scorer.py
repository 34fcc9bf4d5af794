"""Log-probs of given tokens from a running vLLM server. Used by `recipes.teacher`; start with `PromptScorer.check`.

`POST /inference/v1/generate` with `prompt_logprobs` returns the log-prob of every prompt token. They are of temperature
1 and over all ids, whatever `--logprobs-mode` is. The server needs `--enable-scale-out` and no development routes; no
weights are published to it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from deskhand.engines.http_engine.endpoint import EndpointUnreachable, HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.engine import ServerTimeouts
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.protocol import CONTROL_S, collapse_placeholders
from deskhand.engines.vllm.vllm_protocol import image_parts
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.types import Prompt

MAX_REQUESTS = 16
"""Concurrent requests."""
_LOWEST = -9999.0
"""What vLLM reports for a log-prob of minus infinity."""


class PromptScorer:
    """Scores prompts with the first model of a server. `key` names the setting of its URL in errors."""

    def __init__(
        self, endpoint: HttpEndpoint, images: ImageEncoder, key: str, patience: ServerTimeouts | None = None
    ) -> None:
        self.endpoint, self.images, self.key = endpoint, images, key
        self.patience = patience or ServerTimeouts()
        self._places = asyncio.Semaphore(MAX_REQUESTS)

    async def check(self, texts: Iterable[tuple[str, list[int]]], max_tokens: int) -> None:
        """Check a server before a run: its tokenizer encodes `texts` to these ids, and its context holds `max_tokens`.
        Raises `ConfigError` if not, `InfrastructureError` if it cannot be reached."""
        name = self.endpoint.name
        try:
            listed = (await self.endpoint.get("/v1/models", timeout_s=CONTROL_S))["data"][0]
            context = int(listed["max_model_len"])
            for text, ids in texts:
                body = {"model": listed["id"], "prompt": text, "add_special_tokens": False}
                if (await self.endpoint.post("/tokenize", body, timeout_s=CONTROL_S))["tokens"] != ids:
                    raise ConfigError(
                        f"{self.key}: the tokenizer of {listed['id']} at {name} is not that of the model; serve a "
                        "teacher with the same tokenizer"
                    )
        except (KeyError, IndexError, TypeError, RequestRejected) as error:
            why = f" ({error})" if isinstance(error, RequestRejected) else ""
            raise ConfigError(
                f"{self.key}: {name} does not answer like vLLM{why}; use the URL of a vLLM server, without /v1"
            ) from None
        try:
            await self.endpoint.post("/inference/v1/generate", {}, timeout_s=CONTROL_S)
        except RequestRejected as error:
            if error.status in (403, 404, 405):
                raise ConfigError(f"{self.key}: {error}; start vLLM with --enable-scale-out") from None
            if error.status not in (400, 422):  # the answer to a request without ids
                raise
        if context <= max_tokens:
            raise ConfigError(
                f"{self.key}: {name} has a context of {context} tokens, and sequences have up to {max_tokens}; start "
                f"it with --max-model-len {max_tokens + 1}"
            )

    async def score(self, prompt: Prompt) -> np.ndarray:
        """Return the log-prob of every token of a prompt, float64[tokens]; that of the first token is 0.

        Raises `ConfigError` if the server expands images otherwise, `InfrastructureError` if it does not answer.
        """
        async with self._places:
            reply = await self._post(prompt)
        if tuple(reply.get("prompt_token_ids") or ()) != prompt.token_ids:
            raise ConfigError(
                f"{self.key}: {self.endpoint.name} scored other ids than were recorded; serve a teacher with the image "
                "processor of the model"
            )
        entries = reply.get("prompt_logprobs")
        if not isinstance(entries, list) or len(entries) != len(prompt.token_ids):
            raise ConfigError(f"{self.key}: {self.endpoint.name} returns no prompt_logprobs; use a vLLM that does")
        scores = [0.0, *(_score(ids, one) for ids, one in zip(prompt.token_ids[1:], entries[1:], strict=True))]
        return np.minimum(np.array(scores), 0.0)

    async def _post(self, prompt: Prompt) -> Any:
        """Repeat a request while the server is unreachable, at most for `outage_s`."""
        body: dict[str, Any] = {
            "token_ids": collapse_placeholders(prompt),
            "sampling_params": {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False},
            "return_token_ids": True,
        }
        if prompt.spans:
            body["content_parts"] = await asyncio.to_thread(image_parts, prompt, self.images)
        clock = asyncio.get_running_loop().time
        end = clock() + self.patience.outage_s
        while True:
            try:
                return await self.endpoint.post("/inference/v1/generate", body, timeout_s=self.patience.request_s)
            except (EndpointUnreachable, RequestRejected) as error:
                is_final = isinstance(error, RequestRejected) and error.status < 500
                if is_final or clock() > end:
                    raise InfrastructureError(f"{self.key}: {error}") from None
            await asyncio.sleep(self.patience.poll_s)


def _score(token_id: int, entry: Any) -> float:
    value = float(entry[str(token_id)]["logprob"])
    return value if value > _LOWEST else -math.inf
