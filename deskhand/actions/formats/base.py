"""What a dialect is. Invariant: text in, ops out, or a `ParseError` that names the characters; nothing is executed and nothing is
silently dropped or moved.

`parse(emit(ops, view), view) == ops` for every op that the dialect carries without loss; `emit` raises `AgentError` for what it
cannot say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from deskhand.actions.ops import Op, Space, image_px, screen_px


@dataclass(frozen=True, slots=True)
class ScreenView:
    """What the model is shown: the screen, and the image of the whole screen that it is given, in pixels."""

    screen_width: int
    screen_height: int
    image_width: int
    image_height: int
    model_image_size: tuple[int, int] | None = None
    """(width, height) that the model's own preprocessing makes of the image; None: what its family publishes."""

    @classmethod
    def of_screen(cls, width: int, height: int) -> ScreenView:
        """The image is the screen, not resized."""
        return cls(width, height, width, height)

    @property
    def screen(self) -> Space:
        return screen_px(self.screen_width, self.screen_height)

    @property
    def image(self) -> Space:
        return image_px(self.image_width, self.image_height)


@dataclass(frozen=True, slots=True)
class OpSupport:
    """How a dialect carries an op: "lossless", "lossy" (`how` says what is lost), or "absent"."""

    kind: str
    how: str = ""


def carried(
    written: Collection[type[Any]], notes: Mapping[type[Any], str], losses: Mapping[type[Any], str]
) -> dict[type[Op], OpSupport]:
    """How every op of the IR is carried, of which some are `written`; `notes` say what of them can be said, or is done instead."""
    made: dict[type[Op], OpSupport] = {}
    for kind in get_args(Op):
        lossy = kind in written and kind in losses
        how = losses[kind] if lossy else notes.get(kind, "")
        made[kind] = OpSupport("lossy" if lossy else "lossless" if kind in written else "absent", how)
    return made


class ActionFormat(Protocol):
    """One language of actions."""

    @property
    def name(self) -> str: ...

    @property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        """For every op of the IR."""
        ...

    def prompt(self, view: ScreenView) -> str:
        """How the model is told to write; everything that it offers is parsed."""
        ...

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        """Read a reply. Raises `ParseError` with the span that was not understood and the reason."""
        ...

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        """Write ops. Raises `AgentError` for what the dialect cannot say."""
        ...

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        """JSON schema (draft 2020-12) of a reply for constrained decoding; None where a reply is not JSON."""
        ...
