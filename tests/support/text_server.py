"""SGLang's protocol as AReaL speaks it, on a text model of transformers: one plain forward pass for every token.

A pause ends what is being sampled with "abort" and the tokens that there are, as SGLang does it, and holds what comes
then.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class TextServer:
    """Log-probs are of the whole softmax over logits divided by the temperature."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.taken: list[int] = []
        """For each checkpoint that was taken, how many of its tensors were other than those before."""
        self._pauses = 0
        self._going = asyncio.Event()
        self._going.set()
        self._weights = threading.Lock()
        """Held by a forward pass and while weights change."""

    def app(self) -> Starlette:
        posts = {
            "generate": self._generate,
            "pause_generation": self._pause,
            "continue_generation": self._continue,
            "update_weights_from_disk": self._update,
        }
        routes = [Route(f"/{name}", function, methods=["POST"]) for name, function in posts.items()]
        return Starlette(routes=[Route("/health", lambda request: Response()), *routes])

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        assert not body["image_data"]
        await self._going.wait()
        scored, reason = await asyncio.to_thread(self._sample, body["input_ids"], body["sampling_params"])
        meta = {"finish_reason": {"type": reason}, "output_token_logprobs": scored}
        return JSONResponse({"text": "", "output_ids": [entry[1] for entry in scored], "meta_info": meta})

    def _sample(self, ids: list[int], params: dict[str, Any]) -> tuple[list[list[Any]], str]:
        scored: list[list[Any]] = []
        cache, row, pauses = None, torch.tensor([ids]), self._pauses
        while len(scored) < params["max_new_tokens"]:
            with self._weights, torch.no_grad():
                if self._pauses != pauses:
                    return scored, "abort"
                out = self.model(input_ids=row, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logprobs_V = torch.log_softmax(out.logits[0, -1].float() / params["temperature"], -1)
            token = int(torch.multinomial(logprobs_V.exp(), 1))
            scored.append([float(logprobs_V[token]), token, None])
            if token in params["stop_token_ids"]:
                return scored, "stop"
            row = torch.tensor([[token]])
        return scored, "length"

    async def _pause(self, request: Request) -> Response:
        self._pauses += 1
        self._going.clear()
        return JSONResponse({"status": "ok"})

    async def _continue(self, request: Request) -> Response:
        self._going.set()
        return JSONResponse({"status": "ok"})

    async def _update(self, request: Request) -> Response:
        weights = load_file(Path((await request.json())["model_path"]) / "model.safetensors")
        with self._weights, torch.no_grad():
            own = self.model.state_dict()
            assert set(weights) == set(own), set(weights) ^ set(own)
            self.taken.append(
                sum(not torch.equal(own[name], tensor.to(own[name].dtype)) for name, tensor in weights.items())
            )
            self.model.load_state_dict(weights)
        return JSONResponse({"success": True})
