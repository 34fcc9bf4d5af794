"""Live desktops that a test paints, and what the server sends of them."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from patience import limit
from PIL import Image

from deskhand.actions.ops import Op
from deskhand.server.live_desktops import LiveDesktop


async def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `condition` returns, as soon as it is true."""
    async with asyncio.timeout(limit(seconds)):
        while True:
            if found := condition():
                return found
            await asyncio.sleep(0.01)


def click(at: tuple[int, int], **changes: Any) -> dict[str, Any]:
    return {"kind": "click", "at": list(at), "button": 0, "count": 1, **changes}


class Canvas(LiveDesktop):
    """A live desktop whose screen a test paints, and that notes what was performed."""

    def __init__(self, name: str, width: int = 1280, height: int = 720, **facts: Any) -> None:
        super().__init__(name)
        self.screen = np.zeros((height, width, 4), dtype=np.uint8)
        self.performed: list[Op] = []
        self.reads = 0
        self._facts = {"state": "acting", "step": 1, "max_steps": 9, "seconds": 1.0, **facts}

    def facts(self) -> dict[str, Any]:
        return self._facts

    def pixels(self, step: int = 1) -> np.ndarray:
        self.reads += 1
        return self.screen[::step, ::step].copy()

    def size(self) -> tuple[int, int]:
        return self.screen.shape[1], self.screen.shape[0]

    async def perform(self, op: Op) -> None:
        self.performed.append(op)


def unframed(body: bytes) -> tuple[dict[str, Any], list[Image.Image]]:
    """The line of JSON and the pictures of `live_desktops.framed`."""
    line, _, rest = body.partition(b"\n")
    head, pictures = json.loads(line), []
    for length in head["images"]:
        pictures.append(Image.open(io.BytesIO(rest[:length])))
        rest = rest[length:]
    assert not rest
    return head, pictures
