"""A served model that knows no action format: it does what its system prompt says, or answers in prose.

It sees: in a task of `terminal_run` it finds the terminal by its color in the screenshot, clicks on it, types the
command, and says that it is done, each in the words of the line of the prompt that describes such an action.
"""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from deskhand.tasks.suites.basics.terminals import COLORS

PROSE = "I see some terminals on a small screen."
SCALE = 1000
"""What the prompt says about coordinates."""


class LiteralModel:
    """The OpenAI-compatible endpoint of such a model."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        """The bodies of the requests."""

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    async def _complete(self, request: Request) -> JSONResponse:
        body = await request.json()
        self.asked.append(body)
        message = {"role": "assistant", "content": self.reply(body["messages"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": f"{len(self.asked)}", "object": "chat.completion", "created": 0, "model": body["model"]}
        return JSONResponse({**head, "choices": [choice]})

    def reply(self, messages: list[dict[str, Any]]) -> str:
        prompt = next((each["content"] for each in messages if each["role"] == "system"), "")
        if f"0..{SCALE} of the screen's width and height" not in prompt:
            return PROSE
        lines = prompt.splitlines()
        actions = {what: json.JSONDecoder().raw_decode(line)[0] for line in lines for what in _described(line)}
        parts = [part for each in messages if each["role"] == "user" for part in each["content"]]
        task = next(part["text"] for part in parts if part["type"] == "text")
        asked = re.search(r"In the (\w+) terminal run (.+)", task)
        if asked is None:
            return PROSE
        color, command = asked.groups()
        num_replies = sum(each["role"] == "assistant" for each in messages)
        if num_replies == 0:
            url = next(part["image_url"]["url"] for part in parts if part["type"] == "image_url")
            x, y = _center(url, COLORS[color])
            return json.dumps({**actions["click there"], "x": x, "y": y})
        if num_replies == 1:
            return json.dumps({**actions["type text"], "text": f"{command}\n"})
        return json.dumps(actions["the task is finished"])


def _described(line: str) -> list[str]:
    """What the action of a line of the prompt is for; nothing if the line has no action."""
    known = ("click there", "type text", "the task is finished")
    return [what for what in known if line.startswith("{") and re.search(rf"}}  {what}", line)]


def _center(url: str, color: str) -> tuple[int, int]:
    """The middle of what has this color on a screenshot, in thousandths of its sides."""
    image = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
    wanted = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    rows, columns = np.nonzero((np.abs(np.asarray(image, dtype=int) - wanted) < 4).all(axis=2))
    return round(SCALE * float(np.median(columns)) / image.width), round(SCALE * float(np.median(rows)) / image.height)


@contextmanager
def served() -> Iterator[tuple[LiteralModel, str]]:
    """The model, and the URL at which it is served."""
    model = LiteralModel()
    server = uvicorn.Server(uvicorn.Config(model.app(), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield model, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
