"""Replies to aborted requests have nothing but a finish reason."""

from __future__ import annotations

from typing import Any

import pytest

from deskhand.engines.http_engine.protocol import RetryRequest
from deskhand.engines.sglang_protocol import SglangProtocol
from deskhand.engines.vllm.vllm_protocol import VllmProtocol
from deskhand.types import Prompt, Sampling

ABORTED = {
    SglangProtocol: {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "by pause"}}},
    VllmProtocol: {
        "choices": [{"finish_reason": "abort", "token_ids": None, "logprobs": None}],
        "prompt_token_ids": None,
    },
}


class Endpoint:
    name = "server"

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply

    async def post(self, path: str, body: Any, **options: Any) -> dict[str, Any]:
        return self.reply


@pytest.mark.parametrize("protocol", ABORTED)
async def test_an_aborted_request_without_tokens_is_repeated(protocol: Any) -> None:
    with pytest.raises(RetryRequest, match="aborted a request"):
        await protocol(None).generate(Endpoint(ABORTED[protocol]), Prompt((1, 2)), Sampling(4), 1.0)
