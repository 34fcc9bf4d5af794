"""A scripted engine, pictures and message parts for tests of the recorder."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from deskhand.types import Completion, Feature, Prompt, Sampling

ADMIN = "admin-key-of-the-tests"


def picture(seed: int, width: int = 32, height: int = 24) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image | int, width: int = 32, height: int = 24, **options: Any) -> bytes:
    buffer = io.BytesIO()
    (picture(image, width, height) if isinstance(image, int) else image).save(buffer, "PNG", **options)
    return buffer.getvalue()


def data_uri(image: Image.Image | int | bytes) -> str:
    encoded = image if isinstance(image, bytes) else png(image)
    return "data:image/png;base64," + base64.b64encode(encoded).decode()


def image_part(image: Image.Image | int | bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(image)}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def openai_client(http: Any, key: str) -> Any:
    """The official client over `deskhand.recorder.server.in_process_client`, without retries."""
    import openai

    return openai.AsyncOpenAI(base_url="http://recorder/v1", api_key=key, http_client=http, max_retries=0)


@dataclass
class ScriptedEngine:
    """Samples by a script: `script(prompt, sampling)` gives the ids of a reply; without one, random ids from the
    prompt's hash.

    `tamper` may change what is returned, to play a faulty engine.
    """

    script: Callable[[Prompt, Sampling], Sequence[int]] | None = None
    tamper: Callable[[Completion], Completion] | None = None
    prompts: list[Prompt] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)
    version: int = 3
    vocabulary: int = 256
    features: frozenset[Feature] = frozenset()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        chance = random.Random(f"{hash(prompt.token_ids)} {sampling.seed} {len(self.prompts)}")
        if self.script is not None:
            ids = list(self.script(prompt, sampling))
        else:
            ids = [chance.randrange(self.vocabulary) for _ in range(chance.randint(1, 6))]
            if chance.random() < 0.8:
                ids.append(sampling.stop_ids[0])
        ids = ids[: sampling.max_tokens]
        stopped = ids[-1] in sampling.stop_ids
        logprobs = tuple(-chance.random() for _ in ids)
        done = Completion(
            tuple(ids), logprobs, (self.version,) * len(ids), "stop" if stopped else "length", prompt.token_ids
        )
        return self.tamper(done) if self.tamper else done

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        self.version = version

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...


def replying(renderer: Any, *texts: str, **options: Any) -> ScriptedEngine:
    """An engine that gives these replies, in order."""
    replies = iter(texts)
    return ScriptedEngine(
        lambda prompt, sampling: [*renderer.encode_text(next(replies)), renderer.stop_ids[0]], **options
    )
