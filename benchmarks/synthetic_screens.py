"""Synthetic screenshots and an endpoint over an instant engine, for recorder benchmarks."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from deskhand.engines.scripted import ScriptedEngine
from deskhand.models.tiny.architecture import PREPROCESSOR
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app
from deskhand.types import Completion, PreparedImage, Prompt, Sampling, StoredPixels

QUESTION = "Click the button named Save."
REPLY = '{"op":"click","x":512,"y":300}'
Form = Literal["bytes", "values"]
"""How an engine takes patches: as stored bytes, which it expands on its device, or as float32 values."""


def screenshot(random: np.random.Generator, width: int, height: int) -> bytes:
    """Return a PNG of windows, buttons and text, different for every call."""
    image = Image.new("RGB", (width, height), (58, 110, 165))
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        left, top = int(random.integers(0, width * 3 // 4)), int(random.integers(0, height * 3 // 4))
        draw.rectangle((left, top, left + width // 3, top + height // 3), fill=(236, 236, 236), outline=(90, 90, 90))
        for line in range(height // 60):
            draw.text((left + 4, top + 4 + 12 * line), f"File {random.integers(10**9)} Edit View", fill=(20, 20, 20))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


async def forever() -> AsyncIterator[str]:
    """Yield the same reply forever."""
    while True:
        yield REPLY


def turn(screen: bytes) -> dict[str, Any]:
    """Return a user message with a screenshot."""
    url = f"data:image/png;base64,{base64.b64encode(screen).decode()}"
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}],
    }


def body(talk: list[dict[str, Any]]) -> bytes:
    """Return a chat completions request."""
    return json.dumps({"model": "m", "messages": talk, "max_tokens": 64}).encode()


class LookingEngine(ScriptedEngine):
    """Instant engine that takes the patches of new images, as engines with a model do."""

    def __init__(self, encode: Callable[[str], Sequence[int]], stop_id: int, form: Form) -> None:
        super().__init__(encode, stop_id)
        self._form, self._seen = form, set[str]()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Return the next scripted text after taking the patches of new images in a thread."""
        new = [image for image in (prompt.images or {}).values() if image.sha256 not in self._seen]
        if new:
            self._seen.update(image.sha256 for image in new)
            await asyncio.to_thread(self._look, new)
        return await super().generate(prompt, sampling)

    def _look(self, images: list[PreparedImage]) -> None:
        for values in (image.pixel_values for image in images):
            if self._form == "bytes" and isinstance(values, StoredPixels):
                values.stored()
            else:
                np.asarray(values)


class Endpoint:
    """A recorder over an instant engine, with its application; with `form` None the engine takes no patches."""

    def __init__(self, prepared_bytes: int = 512 << 20, *, form: Form | None = "bytes") -> None:
        self.tokenizer = build_tokenizer([f"{QUESTION} and then close the window."])
        self.renderer = ChatRenderer(self.tokenizer)
        self.processor = Qwen2VLImageProcessorPil(
            **{key: value for key, value in PREPROCESSOR.items() if "type" not in key}
        )
        encode, stop_id = self.renderer.encode_text, self.renderer.stop_ids[0]
        self.engine = LookingEngine(encode, stop_id, form) if form else ScriptedEngine(encode, stop_id)
        self.images = ImageCache(self.processor, prepared_bytes=prepared_bytes)
        self.recorder = Recorder(self.renderer, self.engine, self.images)
        self.app = create_app(self.recorder, secrets.token_urlsafe(32))
