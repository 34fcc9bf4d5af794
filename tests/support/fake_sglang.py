"""A stand-in for SGLang's server, written from its published protocol and sharing no code with the client: a real model
behind it, run by transformers alone, one plain forward pass for every token.

What it keeps to: `input_ids` hold one placeholder per image, which the server expands by its own image processor; the
ids that were served come back as `prompt_token_ids`, sampled ids as `output_ids`, log-probs as `[logprob, id, null]`,
weight versions as half-open spans of output tokens; log-probs are of the biased logits over the temperature, before
top_p; control routes answer `{"success", "message"}`; a paused server holds its requests (mode "retract") or ends them
(mode "abort"). With `adapters` it is one that was started with `--enable-lora`: adapters in peft's form are loaded
under names, requests name theirs (`lora_path`), and the weights' version is that of the weights below.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import uvicorn
from PIL import Image
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PARAMETERS = {
    "max_new_tokens",
    "temperature",
    "top_p",
    "stop_token_ids",
    "stop",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "logit_bias",
    "sampling_seed",
    "regex",
    "json_schema",
}
MOST_ADAPTERS = 3
FIELDS = {
    "lora_path",
    "input_ids",
    "image_data",
    "sampling_params",
    "return_logprob",
    "top_logprobs_num",
    "return_prompt_token_ids",
}


class Refusal(Exception):
    pass


class FakeSglang:
    """`model`: a Qwen-VL of transformers; `processor`: its image processor. `context`: what it says that it can
    hold."""

    def __init__(self, model: Any, processor: Any, context: int = 1024, adapters: bool = False) -> None:
        self.model, self.processor, self.context, self.supports_lora = model, processor, context, adapters
        self.adapters: dict[str, Any] = {}
        """The model with an adapter, by the adapter's name."""
        self.in_use: Counter[str] = Counter()
        self.placeholder = model.config.image_token_id
        self.version = "default"
        self.running = asyncio.Event()
        self.running.set()
        self.weights = asyncio.Lock()
        """Held by a forward pass and while weights change."""
        self.aborted = 0
        self.requests: list[dict[str, Any]] = []
        self.token_s = 0.0
        self.released: set[str] | None = None
        """If set, requests for other adapters wait after their third token."""
        self.sampled = 0
        """Tokens, of all requests."""
        self.fail_loading = False
        self.loaded = 0
        """Times that whole weights were taken."""

    def app(self) -> Starlette:
        routes = [
            Route("/health", lambda request: Response(status_code=200)),
            Route("/server_info", self.server_info),
            Route("/get_model_info", self.model_info),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/pause_generation", self.pause, methods=["POST"]),
            Route("/continue_generation", self.resume, methods=["POST"]),
            Route("/update_weights_from_disk", self.update, methods=["POST"]),
            Route("/update_weight_version", self.label, methods=["POST"]),
            Route("/load_lora_adapter", self.load_adapter, methods=["POST"]),
            Route("/unload_lora_adapter", self.unload_adapter, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def server_info(self, request: Request) -> Response:
        told = {
            "context_length": self.context,
            "skip_tokenizer_init": False,
            "version": "0.6",
            "enable_lora": self.supports_lora,
        }
        return JSONResponse(told)

    async def model_info(self, request: Request) -> Response:
        return JSONResponse({"model_path": "m", "is_generation": True, "weight_version": self.version})

    async def pause(self, request: Request) -> Response:
        mode = (await request.json()).get("mode", "abort")
        self.running.clear()
        if mode == "abort":
            self.aborted += 1
            self.running.set()
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: Request) -> Response:
        await request.json()
        self.running.set()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def label(self, request: Request) -> Response:
        self.version = (await request.json())["new_version"]
        return JSONResponse({"success": True, "message": "updated", "new_version": self.version})

    async def update(self, request: Request) -> Response:
        body = await request.json()
        if self.fail_loading:
            return JSONResponse({"success": False, "message": "Failed to load weights: no room"}, status_code=400)
        async with self.weights:
            weights = load_file(Path(body["model_path"]) / "model.safetensors")
            missing, unexpected = self.model.load_state_dict(weights, strict=False)
            if unexpected or [name for name in missing if name != "lm_head.weight"]:
                return JSONResponse(
                    {"success": False, "message": f"missing {missing}, unexpected {unexpected}"}, status_code=400
                )
            self.version = body["weight_version"] or self.version
            self.loaded += 1
            return JSONResponse(
                {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
            )

    async def load_adapter(self, request: Request) -> Response:
        body = await request.json()
        name = body["lora_name"]
        wrong = (
            "LoRA is not enabled. Please set `--enable-lora` to enable dynamic LoRA loading." if not self.supports_lora
            else f"LoRA adapter {name} is already loaded." if name in self.adapters
            else "Exceeded the limit on the number of loaded LoRA adapters." if len(self.adapters) >= MOST_ADAPTERS
            else ""
        )  # fmt: skip
        if wrong:
            return JSONResponse({"success": False, "error_message": wrong, "loaded_adapters": {}}, status_code=400)
        self.adapters[name] = with_adapter(self.model, Path(body["lora_path"]))
        return JSONResponse(
            {"success": True, "error_message": "", "loaded_adapters": dict.fromkeys(self.adapters, "path")}
        )

    async def unload_adapter(self, request: Request) -> Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            message = f"LoRA adapter {name} is not loaded."
            return JSONResponse({"success": False, "error_message": message, "loaded_adapters": {}}, status_code=400)
        while self.in_use[name]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        del self.adapters[name]
        return JSONResponse({"success": True, "error_message": "", "loaded_adapters": {}})

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        try:
            return JSONResponse(await self._generate(body))
        except Refusal as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        params = body["sampling_params"]
        if unknown := (set(params) - PARAMETERS) | (set(body) - FIELDS):
            raise Refusal(f"unexpected {unknown}")
        name = body.get("lora_path")
        if name is not None and name not in self.adapters:
            raise Refusal(f"The following requested LoRA adapters are not loaded: [{name!r}]")
        model = self.adapters[name] if name is not None else self.model
        self.in_use[str(name)] += 1
        try:
            return await self._sample(body, params, model)
        finally:
            self.in_use[str(name)] -= 1

    async def _sample(self, body: dict[str, Any], params: dict[str, Any], model: Any) -> dict[str, Any]:
        ids, pictures = self._expanded(body["input_ids"], body.get("image_data") or [])
        if len(ids) + params["max_new_tokens"] > self.context:
            raise Refusal(f"Requested token count exceeds the model's maximum context length of {self.context} tokens")
        generator = torch.Generator().manual_seed(params.get("sampling_seed") or 0)
        out: list[int] = []
        scored: list[list[Any]] = []
        likely: list[list[list[Any]]] = []
        spans: list[dict[str, Any]] = []
        reason: dict[str, Any] = {"type": "length", "length": params["max_new_tokens"]}
        aborts = self.aborted
        while len(out) < params["max_new_tokens"]:
            await self.running.wait()
            if self.aborted != aborts:
                reason = {"type": "abort", "message": "Abort by pause."}
                break
            await asyncio.sleep(self.token_s)
            while len(out) == 3 and self.released is not None and body.get("lora_path") not in self.released:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            async with self.weights:
                version = self.version
                logits_V = await asyncio.to_thread(self._logits, model, ids + out, pictures)
            for token, bias in params["logit_bias"].items():
                logits_V[int(token)] += bias
            logprobs_V = torch.log_softmax(logits_V / (params["temperature"] or 1.0), -1)
            if params["temperature"] == 0:
                token = int(logprobs_V.argmax())
            else:
                token = int(torch.multinomial(logprobs_V.exp(), 1, generator=generator))
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": len(out), "end": len(out)})
            out.append(token)
            self.sampled += 1
            spans[-1]["end"] = len(out)
            scored.append([float(logprobs_V[token]), token, None])
            values, best = logprobs_V.topk(max(1, body["top_logprobs_num"]))
            likely.append([[float(value), int(one), None] for value, one in zip(values, best, strict=True)])
            if token in params["stop_token_ids"]:
                reason = {"type": "stop", "matched": token}
                break
        meta: dict[str, Any] = {
            "id": "r",
            "finish_reason": reason,
            "prompt_tokens": len(ids),
            "completion_tokens": len(out),
        }
        meta |= {"weight_version": self.version, "weight_versions": spans, "output_token_logprobs": scored}
        if body["top_logprobs_num"]:
            meta["output_top_logprobs"] = likely
        reply: dict[str, Any] = {"text": "", "output_ids": out, "meta_info": meta}
        return {**reply, "prompt_token_ids": ids} if body.get("return_prompt_token_ids") else reply

    def _expanded(self, ids: list[int], uris: list[str]) -> tuple[list[int], dict[str, torch.Tensor]]:
        if ids.count(self.placeholder) != len(uris):
            raise Refusal(f"{ids.count(self.placeholder)} placeholders, {len(uris)} images")
        if not uris:
            return list(ids), {}
        pictures = [Image.open(io.BytesIO(base64.b64decode(uri.split(",", 1)[1]))).convert("RGB") for uri in uris]
        made = self.processor(images=pictures, return_tensors="pt")
        sizes = iter((made["image_grid_thw"].prod(-1) // self.processor.merge_size**2).tolist())
        out: list[int] = []
        for token in ids:
            out.extend([token] * (next(sizes) if token == self.placeholder else 1))
        return out, {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}

    def _logits(self, model: Any, ids: list[int], pictures: dict[str, torch.Tensor]) -> torch.Tensor:
        row = torch.tensor([ids])
        with torch.no_grad():
            found = model(
                input_ids=row,
                attention_mask=torch.ones_like(row),
                mm_token_type_ids=(row == self.placeholder).int(),
                **pictures,
            )
        return found.logits[0, -1].float()


def with_adapter(model: Any, folder: Path) -> Any:
    """A copy of the model whose projections have `alpha / r * B @ A` added."""
    config = json.loads((folder / "adapter_config.json").read_text())
    if not isinstance(config["target_modules"], list) or config["peft_type"] != "LORA":
        raise Refusal(f"target_modules {config['target_modules']!r}")
    tensors = load_file(folder / "adapter_model.safetensors")
    laid = copy.deepcopy(model)
    with torch.no_grad():
        for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
            module = laid.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"))
            delta = tensors[name.replace(".lora_A.", ".lora_B.")] @ tensors[name]
            module.weight += config["lora_alpha"] / config["r"] * delta
    return laid


@contextmanager
def listening(app: Starlette) -> Iterator[str]:
    """The address at which `app` listens on this machine, from a thread of its own."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not (server.started and server.servers):
        if not thread.is_alive():
            raise RuntimeError("the stand-in did not start")
        threading.Event().wait(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
