"""An inference server for AReaL without a GPU: the part of SGLang's protocol that AReaL 1.0.4 uses, around the `hf` engine.

Invariant: what is sampled is sampled by the weights that were taken last, and its log-probs are those of the whole softmax over
logits divided by the temperature; nothing that AReaL asks for is passed over in silence.

| route                           | what it does |
|---|---|
| `GET /health`                   | 200 while the engine lives |
| `POST /generate`                | samples; a run of placeholders, one or as many as the picture takes, stands for one picture |
| `POST /pause_generation`        | ends requests in flight with "abort" and no token (AReaL asks again), holds new ones |
| `POST /continue_generation`     | goes on |
| `POST /update_weights_from_disk`| takes a checkpoint folder |
| `GET /get_model_info`           | how many checkpoints were taken |

`python -m deskhand.integrations.areal.cpu_server CHECKPOINT --port N` serves on this machine alone until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.config.schema import EngineConfig
from deskhand.errors import AgentError, DeskhandError, RecordError
from deskhand.models.load import LoadedModel, load, tensors_of
from deskhand.recorder.images import ImageCache
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Completion, ImageSpan, PreparedImage, Prompt, Sampling

TAKEN = {
    "top_p", "top_k", "max_new_tokens", "temperature", "stop_token_ids", "ignore_eos", "skip_special_tokens", "frequency_penalty",
}  # fmt: skip
_BEFORE = "Abort before prefill: the server was paused"
_WHOLE_VOCABULARY = 1_000_000


class CpuInferenceServer:
    """The protocol on one engine. `context_tokens`: what prompt and reply may have together."""

    def __init__(self, model: LoadedModel, context_tokens: int, max_batch: int = 16) -> None:
        from deskhand.engines.hf import HfEngine

        self.model, self.context_tokens = model, context_tokens
        self.engine = HfEngine(model, EngineConfig(max_model_len=context_tokens, max_num_seqs=max_batch))
        self.images = ImageCache(model.image_processor)
        self.requests = 0
        self._going, self._paused = asyncio.Event(), asyncio.Event()
        self._going.set()

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/get_model_info", self._info),
            Route("/generate", self._generate, methods=["POST"]),
            Route("/pause_generation", self._pause, methods=["POST"]),
            Route("/continue_generation", self._continue, methods=["POST"]),
            Route("/update_weights_from_disk", self._update, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _info(self, request: Request) -> Response:
        return JSONResponse(
            {"model_path": self.model.source, "is_generation": True, "weight_version": str(self.engine.version)}
        )

    async def _pause(self, request: Request) -> Response:
        self._going.clear()
        self._paused.set()
        return JSONResponse({"status": "ok", "message": "Generation paused successfully."})

    async def _continue(self, request: Request) -> Response:
        self._paused.clear()
        self._going.set()
        return JSONResponse({"status": "ok", "message": "Generation continued successfully."})

    async def _update(self, request: Request) -> Response:
        folder = Path((await request.json())["model_path"])
        try:
            weights = await asyncio.to_thread(tensors_of, folder, self.model)
            await self.engine.update_weights(self.engine.version + 1, weights)
        except (DeskhandError, ValueError, OSError) as error:
            return JSONResponse({"success": False, "message": f"{folder}: {error}"}, status_code=400)
        return JSONResponse(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests += 1
        try:
            prompt, sampling = await asyncio.to_thread(self._read, body)
            await self._going.wait()
            done = await self._unless_paused(prompt, sampling)
        except (InvalidRequestError, RecordError, AgentError, ValueError, KeyError) as error:
            return JSONResponse({"error": {"message": f"{type(error).__name__}: {error}"}}, status_code=400)
        except DeskhandError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=503)
        return JSONResponse(_reply(prompt, done))

    async def _unless_paused(self, prompt: Prompt, sampling: Sampling) -> Completion | None:
        """The completion; None when a pause came first."""
        work, pause = (
            asyncio.ensure_future(self.engine.generate(prompt, sampling)),
            asyncio.ensure_future(self._paused.wait()),
        )
        try:
            await asyncio.wait((work, pause), return_when=asyncio.FIRST_COMPLETED)
            return await work if work.done() else None
        finally:
            for task in (work, pause):
                task.cancel()
            await asyncio.gather(work, pause, return_exceptions=True)

    def _read(self, body: dict[str, Any]) -> tuple[Prompt, Sampling]:
        """Raises `ValueError` for what this server does not do."""
        params = dict(body["sampling_params"])
        if unknown := sorted(set(params) - TAKEN):
            raise ValueError(f"sampling parameters {unknown} are not taken")
        if params.get("frequency_penalty") or (params.get("top_k") or _WHOLE_VOCABULARY) < _WHOLE_VOCABULARY:
            raise ValueError("frequency_penalty and top_k would make other log-probs than those that are trained")
        pictures = [self._picture(item) for item in body.get("image_data") or ()]
        prompt = expanded(body["input_ids"], pictures, self.model.image_token_id)
        if len(prompt.token_ids) + params["max_new_tokens"] > self.context_tokens:
            raise ValueError(
                f"{len(prompt.token_ids)} + {params['max_new_tokens']} tokens exceed {self.context_tokens}"
            )
        stops = () if params.get("ignore_eos") else tuple(params.get("stop_token_ids") or ())
        temperature, top_p = float(params["temperature"]), float(params.get("top_p", 1.0))
        return prompt, Sampling(params["max_new_tokens"], temperature, top_p, stops)

    def _picture(self, item: str) -> PreparedImage:
        return self.images.add_data_uri(item if item.startswith("data:") else f"data:image/png;base64,{item}")


def expanded(ids: Sequence[int], pictures: Sequence[PreparedImage], image_id: int) -> Prompt:
    """The canonical prompt. Raises `ValueError` when runs of placeholders and pictures do not agree."""
    out: list[int] = []
    spans: list[ImageSpan] = []
    left = iter(pictures)
    for is_picture, run in groupby(ids, lambda token: token == image_id):
        tokens = list(run)
        if not is_picture:
            out.extend(tokens)
            continue
        shown = next(left, None)
        if shown is None or len(tokens) not in (1, shown.tokens):
            takes = "no picture is left for it" if shown is None else f"its picture takes {shown.tokens}"
            raise ValueError(f"a run of {len(tokens)} placeholders: {takes}")
        spans.append(ImageSpan(len(out), shown.tokens, shown.sha256))
        out.extend([image_id] * shown.tokens)
    if next(left, None) is not None:
        raise ValueError(f"{len(pictures)} pictures, {len(spans)} runs of placeholders")
    return Prompt(tuple(out), tuple(spans), {picture.sha256: picture for picture in pictures})


def _reply(prompt: Prompt, done: Completion | None) -> dict[str, Any]:
    if done is None:
        reason: dict[str, Any] = {"type": "abort", "message": _BEFORE}
        scored: list[list[Any]] = []
    else:
        stopped = done.finish_reason == "stop"
        reason = (
            {"type": "stop", "matched": done.token_ids[-1]}
            if stopped
            else {"type": "length", "length": len(done.token_ids)}
        )
        scored = [[value, token, None] for value, token in zip(done.logprobs, done.token_ids, strict=True)]
    counts = {"prompt_tokens": len(prompt.token_ids), "completion_tokens": len(scored)}
    meta = {"finish_reason": reason, "output_token_logprobs": scored, **counts}
    return {"text": "", "output_ids": [entry[1] for entry in scored], "meta_info": meta}


def main(arguments: Sequence[str] | None = None) -> None:
    """The program."""
    import uvicorn

    parser = argparse.ArgumentParser(description="The part of SGLang's protocol that AReaL uses, on a processor.")
    parser.add_argument("checkpoint")
    at = parser.add_mutually_exclusive_group(required=True)
    at.add_argument("--port", type=int, default=0)
    at.add_argument("--fd", type=int, help="a socket that is bound already, by the program that starts this one")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--context-tokens", type=int, default=8192)
    parser.add_argument("--dtype", default="float32")
    told = parser.parse_args(arguments)

    async def serve() -> None:
        serving = CpuInferenceServer(
            await asyncio.to_thread(load, told.checkpoint, dtype=told.dtype), told.context_tokens
        )
        server = uvicorn.Server(
            uvicorn.Config(serving.app(), host=told.host, port=told.port, log_level="warning", lifespan="off")
        )
        try:
            await server.serve(None if told.fd is None else [socket.socket(fileno=told.fd)])
        finally:
            await serving.engine.close()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
