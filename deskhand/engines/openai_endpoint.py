"""OpenAI-compatible endpoint as an engine, for evaluation only. Built by `recipes.engine_factory` for a remote backend.

Such an endpoint does not report token ids or reliable log-probs. The conversation is decoded from the prompt's ids
(ChatML of the recorder's renderer) with the original screenshots; the reply is encoded with the local tokenizer.
Completions are marked `exact=False`, so they are never trained on.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from typing import Any

import openai

from deskhand.desktop.remote.http_connection import connection_failure, connection_settings, request_failure
from deskhand.engines.http_engine.endpoint import check_url
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.types import Completion, Feature, Prompt, Sampling

_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
_KINDS = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


class OpenAIEndpointEngine:
    """`types.Engine` over `url` (`https://host/v1`).

    `tokenizer` is that of the recorder's renderer; `encoded` returns the encoded bytes of a screenshot by hash.
    """

    version = 0
    features: frozenset[Feature] = frozenset()

    def __init__(
        self,
        url: str,
        model: str,
        tokenizer: Any,
        encoded: Callable[[str], bytes],
        *,
        api_key: str | None = None,
        timeout_s: float = 300.0,
        retries: int = 3,
    ) -> None:
        self._model, self._encoded = model, encoded
        self._backend = tokenizer.backend_tokenizer
        ids = [self._backend.token_to_id(name) for name in _SPECIAL]
        self._start, self._end, self._vision_start, self._image_pad, self._vision_end = ids
        base = check_url(url, "engine.base_url")
        self._client = openai.AsyncOpenAI(
            base_url=base,
            api_key=api_key or "none",
            max_retries=retries,
            timeout=timeout_s,
            # Of the library that the installed openai uses: httpx2 since version 3, httpx before.
            http_client=openai.DefaultAsyncHttpxClient(
                **connection_settings(base), timeout=timeout_s, follow_redirects=False
            ),
        )
        self._where, self._base_url = f"{model} at {base}", base

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion. Raises like `types.Engine.generate`."""
        messages = await asyncio.to_thread(self.messages, prompt)
        settings: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        if sampling.seed is not None:
            settings["seed"] = sampling.seed
        try:
            reply = await self._client.chat.completions.create(
                model=self._model, messages=messages, max_completion_tokens=sampling.max_tokens, **settings
            )
        except openai.BadRequestError as error:
            if error.code == "context_length_exceeded":
                raise AgentError(f"{self._where}: the conversation is too long") from None
            raise InfrastructureError(f"{self._where} rejected a request: {request_failure(error)}") from None
        except openai.APIConnectionError as error:
            reason = connection_failure(error.__cause__ or error, self._base_url)
            raise InfrastructureError(f"{self._where} did not answer: {reason}") from None
        except openai.OpenAIError as error:
            raise InfrastructureError(f"{self._where} did not answer: {request_failure(error)}") from None
        choice = reply.choices[0]
        ids = self._backend.encode(choice.message.content or "", add_special_tokens=False).ids
        stopped = choice.finish_reason != "length"
        ids = (*ids[: sampling.max_tokens - 1], self._end) if stopped or not ids else tuple(ids[: sampling.max_tokens])
        finish = "stop" if ids[-1] == self._end else "length"
        return Completion(ids, (0.0,) * len(ids), (0,) * len(ids), finish, prompt.token_ids, exact=False)

    def messages(self, prompt: Prompt) -> list[Any]:
        """Return the conversation of a prompt in the chat completions format."""
        names = iter([span.sha256 for span in prompt.spans])
        ids, found = list(prompt.token_ids), []
        starts = [at for at, token in enumerate(ids) if token == self._start]
        for start, after in zip(starts, [*starts[1:], len(ids)], strict=True):
            turn = ids[start + 1 : after]
            if self._end not in turn:
                break  # the generation prompt
            role, parts = self._turn(turn[: turn.index(self._end)], names)
            role = "user" if role == "tool" else role
            plain = "".join(part["text"] for part in parts if part["type"] == "text")
            found.append({"role": role, "content": parts if role == "user" else plain})
        return found

    def _turn(self, ids: list[int], names: Any) -> tuple[str, list[dict[str, Any]]]:
        """Return role and parts of one turn."""
        parts: list[dict[str, Any]] = []
        text: list[int] = []

        def flush() -> None:
            if text:
                parts.append({"type": "text", "text": self._backend.decode(text, skip_special_tokens=False)})
                text.clear()

        for at, token in enumerate(ids):
            if token == self._image_pad and ids[at - 1] == self._vision_start:
                flush()
                parts.append({"type": "image_url", "image_url": {"url": self._data_uri(next(names))}})
            elif token not in (self._image_pad, self._vision_start, self._vision_end):
                text.append(token)
            else:
                flush()
        flush()
        head = parts[0]["text"] if parts and parts[0]["type"] == "text" else ""
        role, _, rest = head.partition("\n")
        parts = [{"type": "text", "text": rest}, *parts[1:]] if rest else parts[1:]
        return role, parts

    def _data_uri(self, sha256: str) -> str:
        data = self._encoded(sha256)
        kind = next((kind for head, kind in _KINDS.items() if data.startswith(head)), "image/png")
        return f"data:{kind};base64,{base64.b64encode(data).decode()}"

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Raise `ConfigError`: the endpoint cannot be trained."""
        raise ConfigError(f"{self._where} is for evaluation only; train with engine.backend hf, vllm or sglang")

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None:
        await self._client.close()
