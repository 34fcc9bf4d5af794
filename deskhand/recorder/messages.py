"""Messages in canonical form. Used by the recorder's APIs and renderer; build them with `message`.

Two messages are equal if they have the same role, text, pixels and tool calls. Adjacent texts are joined, images are
compared by pixel hash, and tool-call arguments by their JSON value, because clients rewrite them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image, by the SHA-256 of its RGB pixels."""

    sha256: str


Part = str | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of an assistant. `arguments` is a JSON object as text."""

    name: str
    arguments: str

    @property
    def canonical(self) -> str:
        """A text that is equal for equal calls."""
        try:
            return json.dumps([self.name, json.loads(self.arguments)], sort_keys=True, ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps([self.name, self.arguments])


@dataclass(frozen=True)
class Message:
    """One turn, without empty or adjacent texts. Only assistants have `calls`."""

    role: Role
    parts: tuple[Part, ...]
    calls: tuple[ToolCall, ...] = ()

    @property
    def text(self) -> str:
        """The text without images."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def image_hashes(self) -> tuple[str, ...]:
        """Hashes of the images, in order."""
        return tuple(part.sha256 for part in self.parts if isinstance(part, ImagePart))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over role, texts, image hashes and tool calls, each with its length."""
        digest = hashlib.sha256(self.role.encode())
        for part in self.parts:
            kind, data = (
                (b"T", part.encode("utf-8", "surrogatepass")) if isinstance(part, str) else (b"P", part.sha256.encode())
            )
            digest.update(b"%c%d:" % (kind, len(data)))
            digest.update(data)
        for call in self.calls:
            data = call.canonical.encode("utf-8", "surrogatepass")
            digest.update(b"C%d:" % len(data))
            digest.update(data)
        return digest.digest()


def message(role: Role, parts: Iterable[Part] | str, calls: tuple[ToolCall, ...] = ()) -> Message:
    """Build a message in canonical form: empty texts dropped, adjacent texts joined."""
    joined: list[Part] = []
    for part in [parts] if isinstance(parts, str) else parts:
        if part == "":
            continue
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return Message(role, tuple(joined), calls)
