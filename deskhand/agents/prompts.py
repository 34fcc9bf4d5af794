"""Chat messages of an episode.

Used by the agents and by supervised training; start with `build_messages`.

- Style "compact": no system message; each user turn is screenshot and instruction; assistant turns are the action text.
- Style "full": a system message with the prompt of the action format; the instruction is in the first user turn.

In both styles the summary of dropped turns is in the first user turn, a reply that was not performed is answered by
`error: <reason>`, and zoomed images follow the next screenshot.

Invariant: messages are a pure function of style, instruction and turns, and more turns only append messages.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

PromptStyle = Literal["compact", "full"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A screenshot and the reply to it; None for the current turn."""

    image_url: str
    """URL of the screenshot: a data URI, or what `EpisodeContext.image_url` returned."""
    reply: str | None = None
    error: str | None = None
    """Why the previous reply was not performed."""
    zoom_urls: tuple[str, ...] = ()
    """URLs of the zoomed images that the previous reply requested."""
    screen_text: str | None = None
    """Text observation that replaces all images of the turn."""


def png_data_uri(png: bytes) -> str:
    """Return PNG bytes as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def build_messages(
    style: PromptStyle, instruction: str, turns: Sequence[Turn], *, prompt: str = "", earlier: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the OpenAI chat messages of the turns.

    `prompt` is the prompt of the action format (style "full" only); `earlier` summarizes dropped turns.
    """
    messages: list[dict[str, Any]] = []
    if style == "full":
        messages.append({"role": "system", "content": prompt})
    for index, turn in enumerate(turns):
        text = instruction if style == "compact" or index == 0 else "The screen now."
        if index == 0 and earlier:
            text = "\n".join([text, "Replies so far:", *earlier])
        if turn.zoom_urls and turn.screen_text is None:
            text += "\nBehind the screen: what you zoomed in on."
        if turn.error is not None:
            text += f"\nerror: {turn.error}"
        if turn.screen_text is not None:
            text += f"\nThe screen in words:\n{turn.screen_text}"
        urls = (turn.image_url, *turn.zoom_urls) if turn.screen_text is None else ()
        images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        messages.append({"role": "user", "content": [*images, {"type": "text", "text": text}]})
        if turn.reply is not None:
            messages.append({"role": "assistant", "content": turn.reply})
    return messages
