"""What a model is told. Invariant: messages are a pure function of (style, instruction, turns shown), so that the same turns
give the same messages in training, in evaluation and in the warm start, and a longer list of turns only adds messages at the end.

Style "compact": no system message; every user turn is the screenshot and the instruction; assistant turns are the action text.
Style "full": a system message with the dialect's prompt; the instruction is in the first user turn; every user turn has its
screenshot. In both, what is told of turns that are no longer shown (`context.summary`) is in the first user turn that is, a reply
that was not performed is answered by `error: <reason>`, and what a reply zoomed in on stands behind the next screenshot.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

PromptStyle = Literal["compact", "full"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One screen shown to the model, and what it replied (None: it is being asked now)."""

    image_url: str
    """The screenshot as a data URI."""
    reply: str | None = None
    error: str | None = None
    """Why the reply before this turn was not performed."""
    zoom_urls: tuple[str, ...] = ()
    """The rectangles that the reply before this turn asked to look at, as data URIs."""
    screen_text: str | None = None
    """The screen in words, shown in place of every image of the turn."""


def png_data_uri(png: bytes) -> str:
    """PNG bytes as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def build_messages(
    style: PromptStyle, instruction: str, turns: Sequence[Turn], *, prompt: str = "", earlier: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """OpenAI chat messages for the turns shown.

    `prompt` is the dialect's prompt (style "full" only); `earlier` are lines about the turns that are not shown.
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
