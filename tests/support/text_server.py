"""SGLang's protocol as AReaL speaks it, on a text model of transformers: one plain forward pass for every token."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def text_server(model: Any) -> Starlette:
    """`/health` and `/generate`; log-probs are of the whole softmax over logits divided by the temperature."""

    def sample(ids: list[int], params: dict[str, Any]) -> tuple[list[list[Any]], str]:
        scored: list[list[Any]] = []
        cache = None
        row = torch.tensor([ids])
        while len(scored) < params["max_new_tokens"]:
            with torch.no_grad():
                out = model(input_ids=row, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logprobs_V = torch.log_softmax(out.logits[0, -1].float() / params["temperature"], -1)
            token = int(torch.multinomial(logprobs_V.exp(), 1))
            scored.append([float(logprobs_V[token]), token, None])
            if token in params["stop_token_ids"]:
                return scored, "stop"
            row = torch.tensor([[token]])
        return scored, "length"

    async def generate(request: Request) -> Response:
        body = await request.json()
        assert not body["image_data"]
        scored, reason = await asyncio.to_thread(sample, body["input_ids"], body["sampling_params"])
        meta = {"finish_reason": {"type": reason}, "output_token_logprobs": scored}
        return JSONResponse({"text": "", "output_ids": [entry[1] for entry in scored], "meta_info": meta})

    async def health(request: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/health", health), Route("/generate", generate, methods=["POST"])])
