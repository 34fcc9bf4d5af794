"""Inference server for AReaL without a GPU: the part of SGLang's protocol that AReaL 1.0.4 uses, on the `hf` engine.

Started by `launcher` for `deskhand.cpu_inference_server`, or manually: `python -m
deskhand.integrations.areal.cpu_server CHECKPOINT --port N` (loopback only). Log-probs are those of the full softmax
over logits divided by the temperature; unsupported parameters are rejected.

| route                           | effect |
|---|---|
| `GET /health`                   | 200 while the engine runs |
| `POST /generate`                | samples; a run of placeholders (one, or the image's tokens) stands for one image |
| `POST /pause_generation`        | ends requests in flight with "abort" and no token, holds new ones |
| `POST /continue_generation`     | resumes |
| `POST /update_weights_from_disk`| loads a checkpoint directory |
| `POST /load_lora_adapter`       | loads an adapter; `/generate` names it as `lora_path` |
| `POST /unload_lora_adapter`     | forgets it |
| `GET /get_model_info`           | weight version |
"""

from __future__ import annotations

import argparse
import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.config.schema import EngineConfig
from deskhand.errors import AgentError, DeskhandError, RecordError
from deskhand.models.load import LoadedModel, load, merge_adapter, tensors_of
from deskhand.recorder.images import ImageCache
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Completion, ImageSpan, PreparedImage, Prompt, Sampling

SUPPORTED_PARAMS = {
    "top_p", "top_k", "max_new_tokens", "temperature", "stop_token_ids", "ignore_eos", "skip_special_tokens",
    "frequency_penalty",
}  # fmt: skip
_BEFORE = "Abort before prefill: the server was paused"
_WHOLE_VOCABULARY = 1_000_000


class CpuInferenceServer:
    """The protocol on one engine. `max_model_len` limits prompt and reply together."""

    def __init__(self, model: LoadedModel, max_model_len: int, max_batch: int = 16) -> None:
        from deskhand.engines.hf import HfEngine

        self.model, self.max_model_len = model, max_model_len
        self.engine = HfEngine(model, EngineConfig(max_model_len=max_model_len, max_num_seqs=max_batch))
        self.images = ImageCache(model.image_processor)
        self.requests = 0
        self._adapters: dict[str | None, dict[str, Any]] = {}
        """Merged weights by adapter; None: the base model's, kept as soon as there is an adapter."""
        self._serving: str | None = None
        self._users = 0
        """Requests in flight, all of `_serving`."""
        self._turn = asyncio.Condition()
        self._running, self._paused = asyncio.Event(), asyncio.Event()
        self._running.set()

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/get_model_info", self._info),
            Route("/generate", self._generate, methods=["POST"]),
            Route("/pause_generation", self._pause, methods=["POST"]),
            Route("/continue_generation", self._continue, methods=["POST"]),
            Route("/update_weights_from_disk", self._update, methods=["POST"]),
            Route("/load_lora_adapter", self._load_adapter, methods=["POST"]),
            Route("/unload_lora_adapter", self._unload_adapter, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200)

    async def _info(self, request: Request) -> Response:
        return JSONResponse(
            {"model_path": self.model.source, "is_generation": True, "weight_version": str(self.engine.version)}
        )

    async def _pause(self, request: Request) -> Response:
        self._running.clear()
        self._paused.set()
        return JSONResponse({"status": "ok", "message": "Generation paused successfully."})

    async def _continue(self, request: Request) -> Response:
        self._paused.clear()
        self._running.set()
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

    async def _load_adapter(self, request: Request) -> Response:
        body = await request.json()
        name, folder = str(body["lora_name"]), Path(body["lora_path"])
        try:
            weights = await asyncio.to_thread(self._merge, folder)
        except (DeskhandError, ValueError, OSError) as error:
            return JSONResponse({"success": False, "error_message": f"{folder}: {error}"}, status_code=400)
        async with self._turn:
            self._adapters.setdefault(None, {key: value.clone() for key, value in self._weights().items()})
            self._adapters[name] = weights
        return JSONResponse({"success": True, "loaded_adapters": [key for key in self._adapters if key]})

    async def _unload_adapter(self, request: Request) -> Response:
        self._adapters.pop(str((await request.json())["lora_name"]), None)
        return JSONResponse({"success": True, "loaded_adapters": [key for key in self._adapters if key]})

    def _weights(self) -> dict[str, Any]:
        return dict(self.model.model.state_dict())

    def _merge(self, folder: Path) -> dict[str, Any]:
        """Return the weights of the served checkpoint with an adapter. Blocking."""
        dtype = str(next(self.model.model.parameters()).dtype).removeprefix("torch.")
        return dict(merge_adapter(load(self.model.source, dtype=dtype), folder, str(folder)).model.state_dict())

    @asynccontextmanager
    async def _adapter(self, name: str | None) -> AsyncIterator[None]:
        """Let the engine have this adapter's weights meanwhile: requests of one adapter run together, others wait."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._serving == name or not self._users)
            if self._serving != name:
                if name not in self._adapters:
                    raise ValueError(f"lora_path {name}: not loaded; loaded: {[key for key in self._adapters if key]}")
                await self.engine.update_weights(self.engine.version + 1, self._adapters[name])
                self._serving = name
            self._users += 1
        try:
            yield
        finally:
            async with self._turn:
                self._users -= 1
                self._turn.notify_all()

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests += 1
        try:
            prompt, sampling = await asyncio.to_thread(self._parse, body)
            await self._running.wait()
            async with self._adapter(body.get("lora_path")):
                done = await self._unless_paused(prompt, sampling)
        except (InvalidRequestError, RecordError, AgentError, ValueError, KeyError) as error:
            return JSONResponse({"error": {"message": f"{type(error).__name__}: {error}"}}, status_code=400)
        except DeskhandError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=503)
        return JSONResponse(_reply(prompt, done))

    async def _unless_paused(self, prompt: Prompt, sampling: Sampling) -> Completion | None:
        """Return the completion, or None if a pause came first."""
        work = asyncio.ensure_future(self.engine.generate(prompt, sampling))
        pause = asyncio.ensure_future(self._paused.wait())
        try:
            await asyncio.wait((work, pause), return_when=asyncio.FIRST_COMPLETED)
            return await work if work.done() else None
        finally:
            for task in (work, pause):
                task.cancel()
            await asyncio.gather(work, pause, return_exceptions=True)

    def _parse(self, body: dict[str, Any]) -> tuple[Prompt, Sampling]:
        """Raises `ValueError` for unsupported requests."""
        params = dict(body["sampling_params"])
        if unknown := sorted(set(params) - SUPPORTED_PARAMS):
            raise ValueError(f"unsupported sampling parameters: {unknown}")
        if params.get("frequency_penalty") or (params.get("top_k") or _WHOLE_VOCABULARY) < _WHOLE_VOCABULARY:
            raise ValueError("frequency_penalty and top_k are unsupported: log-probs differ from the trained ones")
        images = [
            self.images.add_data_uri(item if item.startswith("data:") else f"data:image/png;base64,{item}")
            for item in body.get("image_data") or ()
        ]
        prompt = expand_prompt(body["input_ids"], images, self.model.image_token_id)
        if len(prompt.token_ids) + params["max_new_tokens"] > self.max_model_len:
            raise ValueError(f"{len(prompt.token_ids)} + {params['max_new_tokens']} tokens exceed {self.max_model_len}")
        stops = () if params.get("ignore_eos") else tuple(params.get("stop_token_ids") or ())
        temperature, top_p = float(params["temperature"]), float(params.get("top_p", 1.0))
        return prompt, Sampling(params["max_new_tokens"], temperature, top_p, stops)


def expand_prompt(ids: Sequence[int], images: Sequence[PreparedImage], image_id: int) -> Prompt:
    """Return the prompt with expanded placeholders. Raises `ValueError` if placeholder runs and images do not match."""
    out: list[int] = []
    spans: list[ImageSpan] = []
    remaining = iter(images)
    for is_image, run in groupby(ids, lambda token: token == image_id):
        tokens = list(run)
        if not is_image:
            out.extend(tokens)
            continue
        image = next(remaining, None)
        if image is None or len(tokens) not in (1, image.tokens):
            expected = "no image left" if image is None else f"the image has {image.tokens} tokens"
            raise ValueError(f"run of {len(tokens)} placeholders: {expected}")
        spans.append(ImageSpan(len(out), image.tokens, image.sha256))
        out.extend([image_id] * image.tokens)
    if next(remaining, None) is not None:
        raise ValueError(f"{len(images)} images for {len(spans)} runs of placeholders")
    return Prompt(tuple(out), tuple(spans), {image.sha256: image for image in images})


def _reply(prompt: Prompt, done: Completion | None) -> dict[str, Any]:
    if done is None:
        reason: dict[str, Any] = {"type": "abort", "message": _BEFORE}
        scored: list[list[Any]] = []
    else:
        reason = {"type": "length", "length": len(done.token_ids)}
        if done.finish_reason == "stop":
            reason = {"type": "stop", "matched": done.token_ids[-1]}
        scored = [[value, token, None] for value, token in zip(done.logprobs, done.token_ids, strict=True)]
    counts = {"prompt_tokens": len(prompt.token_ids), "completion_tokens": len(scored)}
    meta = {"finish_reason": reason, "output_token_logprobs": scored, **counts}
    return {"text": "", "output_ids": [entry[1] for entry in scored], "meta_info": meta}


def main(arguments: Sequence[str] | None = None) -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description="The part of SGLang's protocol that AReaL uses, on the CPU.")
    parser.add_argument("checkpoint")
    at = parser.add_mutually_exclusive_group(required=True)
    at.add_argument("--port", type=int, default=0)
    at.add_argument("--fd", type=int, help="bound socket inherited from the parent process")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args(arguments)

    async def serve() -> None:
        serving = CpuInferenceServer(
            await asyncio.to_thread(load, options.checkpoint, dtype=options.dtype), options.max_model_len
        )
        server = uvicorn.Server(
            uvicorn.Config(serving.app(), host=options.host, port=options.port, log_level="warning", lifespan="off")
        )
        try:
            await server.serve(None if options.fd is None else [socket.socket(fileno=options.fd)])
        finally:
            await serving.engine.close()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
