"""Messages as the recorder sees them. Invariant: two messages are equal exactly when they have the same role, text, pixels and tool
calls.

How the text was cut into parts and how an image was encoded does not count: neighbouring texts are one text, a picture is its
pixel hash. Nor do white space and the order of keys in a tool call's arguments, as clients write them anew.
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
    """An image of the conversation, by the SHA-256 of its RGB pixels."""

    sha256: str


Part = str | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an assistant asks for. `arguments` is a JSON object as text."""

    name: str
    arguments: str

    @property
    def canonical(self) -> str:
        """The same text for arguments of the same meaning."""
        try:
            return json.dumps([self.name, json.loads(self.arguments)], sort_keys=True, ensure_ascii=False)
        except (ValueError, RecursionError):
            return json.dumps([self.name, self.arguments])


@dataclass(frozen=True)
class Message:
    """One turn. `parts` holds no empty and no neighbouring texts; make messages with `message`. `calls`: an assistant's only."""

    role: Role
    parts: tuple[Part, ...]
    calls: tuple[ToolCall, ...] = ()

    @property
    def text(self) -> str:
        """The texts without the pictures."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def pictures(self) -> tuple[str, ...]:
        """Hashes of the pictures in order."""
        return tuple(part.sha256 for part in self.parts if isinstance(part, ImagePart))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over role, texts, picture hashes and tool calls, each with its length."""
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
    """A message in canonical form: empty texts left out, neighbouring texts joined."""
    joined: list[Part] = []
    for part in [parts] if isinstance(parts, str) else parts:
        if part == "":
            continue
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return Message(role, tuple(joined), calls)
