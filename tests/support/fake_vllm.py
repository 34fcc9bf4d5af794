"""A stand-in for vLLM's server that starts at once: `python fake_vllm.py --model FOLDER --uds SOCKET`, of the standard
library alone and sharing no code with the client. It has no model: a token is a digest of the weights and of all that
came before it, pictures included, so other weights, ids or pixels give other tokens. What it does know is the protocol:
placeholders are expanded by the pictures' sizes, pictures are kept by their names, a paused server freezes its
requests, every token carries the name of its weights, and unexpanded or wrong requests are answered as vLLM answers
them.

Environment: FAKE_TOKEN_S (seconds a token takes), FAKE_START_S (seconds until it listens), FAKE_DIE (exit code instead
of a start), FAKE_IMAGES (pictures that are kept), FAKE_LOGPROBS and FAKE_DEVICE (what it says of its settings).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socketserver
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

IMAGE, VOCABULARY, BLOCK = 1400, 1402, 32
DEFAULTS = {"frequency_penalty", "min_p", "n", "presence_penalty", "top_k"}
TOKEN_S = float(os.environ.get("FAKE_TOKEN_S", "0.001"))


class State:
    """What the server has: weights, their name, and pictures (size and digest) by name, the oldest dropped first."""

    def __init__(self, model: str) -> None:
        self.weights = digest(Path(model) / "model.safetensors")
        self.label = "default"
        self.running = threading.Event()
        self.running.set()
        self.pictures: dict[str, tuple[int, int, bytes]] = {}
        self.generated = 0


def digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest() if file.exists() else b"none"


class Bad(Exception):
    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def picture(state: State, part: dict[str, Any]) -> tuple[int, int, bytes]:
    """Size and digest of the picture of a part: decoded from its PNG, or known by its name."""
    name, url = part["uuid"], part["url"]
    if url is None:
        if name not in state.pictures:
            raise Bad(f"Expected a cached item for mm_hash={name!r}", 500)
        return state.pictures[name]
    head = "data:image/png;base64,"
    if not url.startswith(head):
        raise Bad("not a PNG data URI")
    data = base64.b64decode(url[len(head) :])
    width, height = struct.unpack(">II", data[16:24])
    state.pictures[name] = width, height, hashlib.sha256(data).digest()
    while len(state.pictures) > int(os.environ.get("FAKE_IMAGES", "1000")):
        del state.pictures[next(iter(state.pictures))]
    return width, height, hashlib.sha256(data).digest()


def expand(state: State, ids: list[int], parts: list[dict[str, Any]]) -> tuple[list[int], list[dict[str, int]], bytes]:
    """Each placeholder becomes as many as its picture takes; also those of ids that were expanded already, as vLLM
    does."""
    shown = [picture(state, part) for part in parts]
    if shown and ids.count(IMAGE) < len(shown):
        raise Bad(f"Expected there to be {len(shown)} prompt placeholders")
    out: list[int] = []
    places = []
    waiting = list(shown)
    for token in ids:
        if token == IMAGE and waiting:
            width, height, _ = waiting.pop(0)
            places.append({"offset": len(out), "length": width * height // BLOCK**2})
            out.extend([IMAGE] * (width * height // BLOCK**2))
        else:
            out.append(token)
    return out, places, b"".join(mark for _, _, mark in shown)


def generate(state: State, body: dict[str, Any]) -> dict[str, Any]:
    params = body["sampling_params"]
    known = {
        "max_tokens",
        "temperature",
        "top_p",
        "stop_token_ids",
        "ignore_eos",
        "detokenize",
        "logprobs",
        "logit_bias",
        "seed",
    }
    unknown = set(params) - known - {"structured_outputs"} - DEFAULTS
    if unknown or body["model"] != "policy":
        raise Bad(f"unexpected {unknown or body['model']}")
    prompt, places, marks = expand(state, body["token_ids"], body.get("content_parts") or [])
    banned = {int(token) for token in params["logit_bias"]}
    ids: list[int] = []
    spans: list[dict[str, Any]] = []
    finish = "length"
    while len(ids) < params["max_tokens"]:
        state.running.wait()
        time.sleep(TOKEN_S)
        seen = json.dumps([prompt, ids, params["temperature"] and params.get("seed")]).encode()
        chance = int.from_bytes(hashlib.sha256(state.weights + marks + seen).digest()[:8], "big")
        token = next(one % VOCABULARY for one in range(chance, chance + VOCABULARY) if one % VOCABULARY not in banned)
        if not spans or spans[-1]["version"] != state.label:
            spans.append({"version": state.label, "start": len(ids), "end": len(ids)})
        ids.append(token)
        spans[-1]["end"] = len(ids)
        if token in params["stop_token_ids"]:
            finish = "stop"
            break
    state.generated += 1
    content = [{"token_id": token, "logprob": -0.5, "rank": 1, "top_logprobs": []} for token in ids]
    choice = {
        "index": 0,
        "finish_reason": finish,
        "token_ids": ids,
        "logprobs": {"content": content},
        "weight_versions": spans,
    }
    return {
        "request_id": "x",
        "choices": [choice],
        "prompt_token_ids": prompt,
        "mm_placeholders": {"image": places} if places else None,
    }


def control(state: State, path: str, query: str, body: Any) -> Any:
    """The development routes."""
    if path == "/pause":
        if "mode=keep" not in query:
            raise Bad("this server would have aborted its requests")
        state.running.clear()
    elif path == "/resume":
        state.running.set()
    elif path == "/collective_rpc" and body["method"] == "reload_weights":
        file = Path(body["kwargs"]["weights_path"]) / "model.safetensors"
        if state.running.is_set() or not file.exists():
            raise Bad("weights of a running server were replaced, or by none", 500)
        state.weights = digest(file)
    elif path in ("/reset_mm_cache", "/reset_encoder_cache"):
        state.pictures.clear()
    elif path == "/update_weight_version":
        state.label = body["new_version"]
    elif path != "/reset_prefix_cache":
        raise Bad("no such route", 404)
    return {}


def fetch(state: State, path: str, query: str) -> Any:
    if path == "/v1/models":
        return {"data": [{"id": "policy", "max_model_len": 2048}]}
    if path == "/server_info" and query != "config_format=json":
        return {"vllm_config": "model='...', logprobs_mode=..."}
    if path == "/server_info":
        return {
            "vllm_config": {
                "model_config": {"logprobs_mode": os.environ.get("FAKE_LOGPROBS", "processed_logprobs")},
                "parallel_config": {"worker_extension_cls": ""},
                "device_config": {"device_type": os.environ.get("FAKE_DEVICE", "cuda")},
            }
        }
    if path == "/weight_info":
        return {"weight_version": state.label}
    if path == "/health":
        return {}
    raise Bad("no such route", 404)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def answer(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        try:
            body = json.loads(raw) if raw else None
            if self.command == "GET":
                reply, status = fetch(self.state, path, query), 200
            elif path == "/inference/v1/generate":
                if "token_ids" not in body:
                    raise Bad("token_ids: Field required", 422)
                reply, status = generate(self.state, body), 200
            else:
                reply, status = control(self.state, path, query, body), 200
        except Bad as error:
            reply, status = {"error": {"message": str(error), "code": error.status}}, error.status
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: Any) -> None:
        print(format % args, flush=True)

    def address_string(self) -> str:
        return "socket"


class Listener(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def get_request(self) -> tuple[Any, Any]:
        connection, _ = super().get_request()
        return connection, ("socket", 0)


def watch_starter() -> None:
    while os.read(0, 4096):
        pass
    os._exit(9)


def main() -> None:
    words = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    threading.Thread(target=watch_starter, daemon=True).start()
    if "FAKE_DIE" in os.environ:
        print("the graphics card is on fire", flush=True)
        sys.exit(int(os.environ["FAKE_DIE"]))
    time.sleep(float(os.environ.get("FAKE_START_S", "0")))
    Handler.state = State(words["--model"])
    with Listener(words["--uds"], Handler) as listener:
        listener.serve_forever()


if __name__ == "__main__":
    main()
