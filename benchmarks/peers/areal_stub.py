"""An engine for AReaL's proxy that answers at once with the same ids. It runs in AReaL's environment, where AReaL's proxy server
makes it when it is told to (`POST /create_engine`), as it makes its engines in training; everything else there is AReaL's."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any


class StubEngine:
    """What AReaL's proxy asks of an engine: its settings, `initialize` and `agenerate`."""

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
        """Nothing to connect to."""

    async def agenerate(self, request: Any) -> Any:
        """The reply, at once."""
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
        """Nothing is held."""
