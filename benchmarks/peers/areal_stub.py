"""Instant engine for AReaL's proxy, returning fixed ids. AReaL's proxy server creates it with `POST /create_engine`."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any


class StubEngine:
    """The engine interface that AReaL's proxy uses."""

    def __init__(self, tokenizer_path: str, reply_ids: list[int], admin_key: str) -> None:
        agent = SimpleNamespace(
            tool_call_parser="qwen",
            reasoning_parser="qwen3",
            engine_max_tokens=None,
            chat_template_type="hf",
            session_timeout_seconds=3600,
            admin_api_key=admin_key,
        )
        self.config = SimpleNamespace(tokenizer_path=tokenizer_path, agent=agent, lora_name="")
        self._reply_ids = reply_ids
        self._response = importlib.import_module("areal.api.io_struct").ModelResponse

    def initialize(self) -> None:
        """Do nothing: there is nothing to connect to."""

    async def agenerate(self, request: Any) -> Any:
        """Return the fixed reply."""
        count = len(self._reply_ids)
        return self._response(
            input_tokens=list(request.input_ids),
            output_tokens=list(self._reply_ids),
            output_logprobs=[0.0] * count,
            output_versions=[0] * count,
            stop_reason="stop",
            tokenizer=request.tokenizer,
        )

    def destroy(self) -> None:
        """Do nothing: nothing is held."""
