"""Messages as the recorder sees them. Invariant: two messages are equal exactly when they have the same role, text and pixels.

How the text was cut into parts and how an image was encoded does not count: neighbouring texts are one text, a picture is its
pixel hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of the conversation, by the SHA-256 of its RGB pixels."""

    sha256: str


Part = str | Picture


@dataclass(frozen=True)
class Message:
    """One turn. `parts` holds no empty and no neighbouring texts; make messages with `message`."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """The texts without the pictures."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def pictures(self) -> tuple[str, ...]:
        """Hashes of the pictures in order."""
        return tuple(part.sha256 for part in self.parts if isinstance(part, Picture))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over role, texts and picture hashes, each with its length."""
        digest = hashlib.sha256(self.role.encode())
        for part in self.parts:
            kind, data = (b"T", part.encode("utf-8", "surrogatepass")) if isinstance(part, str) else (b"P", part.sha256.encode())
            digest.update(b"%c%d:" % (kind, len(data)))
            digest.update(data)
        return digest.digest()


def message(role: Role, parts: Iterable[Part] | str) -> Message:
    """A message in canonical form: empty texts left out, neighbouring texts joined."""
    joined: list[Part] = []
    for part in [parts] if isinstance(parts, str) else parts:
        if part == "":
            continue
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return Message(role, tuple(joined))
