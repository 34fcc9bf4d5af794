"""The `ActionFormat` protocol: text to ops and back.

Nothing is executed, dropped or moved silently: `parse` returns ops or raises a `ParseError` with the span at fault, and
`parse(emit(ops, view), view) == ops` for every op that the format supports without loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from deskhand.actions.ops import Op, Space, screen_px


@dataclass(frozen=True, slots=True)
class ScreenView:
    """Sizes in pixels of the screen and of the screenshot that the model receives."""

    screen_width: int
    screen_height: int
    image_width: int
    image_height: int
    model_image_size: tuple[int, int] | None = None
    """(width, height) of the image after the model's preprocessing; None computes it as published for the family."""

    @classmethod
    def of_screen(cls, width: int, height: int) -> ScreenView:
        """Return a view whose image has the size of the screen."""
        return cls(width, height, width, height)

    @property
    def screen(self) -> Space:
        return screen_px(self.screen_width, self.screen_height)

    @property
    def image(self) -> Space:
        return screen_px(self.image_width, self.image_height)


@dataclass(frozen=True, slots=True)
class OpSupport:
    """Support of an op: "lossless", "lossy" or "absent"; `how` is the restriction, loss or substitute."""

    kind: str
    how: str = ""


def support_of_ops(
    written: Collection[type[Any]], notes: Mapping[type[Any], str], losses: Mapping[type[Any], str]
) -> dict[type[Op], OpSupport]:
    """Return the support of every op: `written` ops are supported, `notes` are restrictions or substitutes."""
    support: dict[type[Op], OpSupport] = {}
    for kind in get_args(Op):
        lossy = kind in written and kind in losses
        how = losses[kind] if lossy else notes.get(kind, "")
        support[kind] = OpSupport("lossy" if lossy else "lossless" if kind in written else "absent", how)
    return support


class ActionFormat(Protocol):
    """An action format: prompt, parser, emitter and JSON schema."""

    @property
    def name(self) -> str: ...

    @property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        """Support of every op."""
        ...

    def prompt(self, view: ScreenView) -> str:
        """Return the instructions for the model. Everything that they offer can be parsed."""
        ...

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        """Parse a reply. Raises `ParseError` with the span at fault and the reason."""
        ...

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        """Write ops. Raises `AgentError` if the format cannot express one."""
        ...

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        """Return the JSON schema (draft 2020-12) of a reply for constrained decoding; None if replies are not JSON."""
        ...
