"""Coverage-guided fuzzing of the endpoint: `python fuzzed_endpoint.py RUNS SEED FOLDER`.

An input chooses a route, a key and a body. Bodies begin as the good ones of `request_bodies` and are changed in their
JSON or in their bytes; what reaches new code is kept in FOLDER and changed further. An input fails when the answer is a
server error, when a key that opens nothing gets anything but 401 or 403, or when a good request fails after it. Prints
the answers by status.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import random
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import atheris
import chat_templates
from recording import ScriptedEngine
from request_bodies import BODIES
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.types import Completion

with atheris.instrument_imports(include=["deskhand.recorder"]):
    from deskhand.recorder.images import ImageCache
    from deskhand.recorder.recorder import Recorder
    from deskhand.recorder.renderer import ChatRenderer
    from deskhand.recorder.server import create_app

ADMIN = "admin-key-of-the-tests"
PATHS = [*BODIES, "/sessions/s/end", "/sessions", "/health", "/v1/models"]
KEYS = ("own", "own", "own", "admin", "foreign", "wrong", "none")
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    0.5,
    "",
    "assistant",
    "tool",
    "\ud800",
    "{",
    [],
    {},
    [[]],
    "<|im_end|>",
]
AFRESH = 500
"""Requests after which the endpoint is made anew."""
MEMORY = 8 << 30
"""Bytes of address space. The fuzzer's own bound reads the peak that a child inherits from the process that started
it."""


class Endpoint:
    """The application with one open session, and another's key."""

    def __init__(self) -> None:
        tokenizer = build_tokenizer(["Click the button named Save."], merges=20)
        tokenizer.chat_template = chat_templates.HERMES_TOOLS
        size = {"shortest_edge": 64, "longest_edge": 64 * 64}
        processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
        self.renderer, self.processor = ChatRenderer(tokenizer), processor
        self.engine = ScriptedEngine(features=frozenset({"regex", "top_logprobs"}), tamper=self._with_alternatives)
        self.statuses: Counter[int] = Counter()
        self.afresh()

    def afresh(self) -> None:
        self.engine.prompts.clear()
        self.engine.samplings.clear()
        self.recorder = Recorder(self.renderer, self.engine, ImageCache(self.processor), context_tokens=4000)
        self.app = create_app(self.recorder, ADMIN)
        self.keys = {
            "own": "",
            "foreign": self.recorder.open_session("foreign"),
            "admin": ADMIN,
            "wrong": "sk-wrong",
            "none": "",
        }

    def _with_alternatives(self, done: Completion) -> Completion:
        """A reply with as many alternatives as were asked for."""
        count = self.engine.samplings[-1].top_logprobs
        listed = tuple(tuple((n, value - n) for n in range(count)) for value in done.logprobs) if count else ()
        return dataclasses.replace(done, top_logprobs=listed)

    def open(self) -> None:
        """There is a session "s" that takes calls."""
        session = next((one for one in self.recorder.sessions if one.id == "s"), None)
        if session is None or session.stopped is not None:
            if session is not None:
                self.recorder.sessions.close("s")
            self.keys["own"] = self.recorder.open_session("s")

    async def ask(self, path: str, key: str, body: bytes) -> int:
        """One request, answered by the application itself; its status."""
        headers = [(b"content-type", b"application/json")]
        headers += [(b"authorization", b"Bearer " + self.keys[key].encode())] if key != "none" else []
        method = "GET" if path in ("/health", "/v1/models") else "POST"
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
        }
        scope |= {"method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
        scope |= {"server": ("h", 80), "client": ("c", 1)}
        given = [{"type": "http.request", "body": body, "more_body": False}]
        sent: list[dict[str, Any]] = []
        over = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if given:
                return given.pop()
            await over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        over.set()
        return sent[0]["status"]


def seeds() -> list[bytes]:
    """An input for each route with its own key and good body."""
    found = []
    for number, path in enumerate(PATHS):
        key = 3 if path in ("/sessions", "/sessions/s/end") else 0
        found.append(bytes([number, key]) + json.dumps(BODIES.get(path, {})).encode())
    return found


def changed(data: bytes, size: int, seed: int) -> bytes:
    """Another input: a value of its JSON dropped, doubled or replaced, or its bytes changed."""
    chance = random.Random(seed)
    try:
        body = json.loads(data[2:])
    except ValueError:
        body = None
    if body is None or chance.random() < 0.3:
        return atheris.Mutate(data, size)
    holder: Any = {"": body}
    for _ in range(chance.randint(1, 3)):
        place, key = holder, ""
        while isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.85:
            place = place[key]
            key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        action = chance.randrange(4)
        if action == 0 and place is not holder:
            del place[key]
        elif action == 1 and isinstance(place, list):
            place.insert(key, copy.deepcopy(place[key]))
        elif action == 2 and isinstance(place[key], dict):
            place[key][chance.choice(["type", "role", "content", "x", "text", "name"])] = copy.deepcopy(
                chance.choice(VALUES)
            )
        else:
            place[key] = copy.deepcopy(chance.choice(VALUES))
    route = chance.randrange(len(PATHS)) if chance.random() < 0.1 else data[0]
    return (bytes([route, chance.randrange(len(KEYS))]) + json.dumps(holder[""]).encode())[:size]


def main(runs: int, seed: int, folder: Path) -> None:
    endpoint, loop = Endpoint(), asyncio.new_event_loop()
    good = json.dumps({"messages": [{"role": "user", "content": "go"}], "max_tokens": 4}).encode()

    def one(data: bytes) -> None:
        if len(data) < 2:
            return
        path, key = PATHS[data[0] % len(PATHS)], KEYS[data[1] % len(KEYS)]
        if sum(endpoint.statuses.values()) % AFRESH == 0:
            endpoint.afresh()
        endpoint.open()
        status = loop.run_until_complete(endpoint.ask(path, key, data[2:]))
        endpoint.statuses[status] += 1
        if status >= 500:
            raise RuntimeError(f"{path} answered {status} to {data[2:]!r}")
        if key in ("wrong", "none") and path != "/health" and status not in (401, 404):
            raise RuntimeError(f"{path} answered {status} to a key that opens nothing")
        if key == "foreign" and path.startswith("/sessions") and status not in (401, 403):
            raise RuntimeError(f"{path} answered {status} to a foreign key")
        endpoint.open()
        if (after := loop.run_until_complete(endpoint.ask("/v1/chat/completions", "own", good))) != 200:
            raise RuntimeError(f"a good request was answered {after} after {path} with {data[2:]!r}")
        if sum(endpoint.statuses.values()) == runs:
            print(json.dumps({str(found): count for found, count in sorted(endpoint.statuses.items())}), flush=True)

    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds()):
        (folder / f"seed-{number}").write_bytes(data)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    words = [
        sys.argv[0],
        "-rss_limit_mb=0",
        f"-runs={2 * runs}",
        f"-seed={seed}",
        "-max_len=6000",
        f"-artifact_prefix={folder}/failed-",
        str(folder),
    ]
    atheris.Setup(words, one, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
