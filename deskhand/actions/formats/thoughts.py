"""The words around an action in each format: `with_thought`, for demonstrations that say why. Used by imports.

A format's prompt says where the model may think: under `## Thought:`, within `<think>`, behind `Thought:`, in a field
of its JSON, or in plain words before the action. The opening of an emitted action tells which.
"""

from __future__ import annotations

import json

from deskhand.actions.formats.base import ActionFormat, ScreenView
from deskhand.errors import ParseError

_FIELD = '"thought": ""'
"""Holo's empty field for a thought."""
_PLACES = (
    ("## Code:", "## Thought:\n{}\n\n", "## Action:\n{}\n\n"),
    ("<action>", "<think>\n{}\n</think>\n", "<operation>\n{}\n</operation>\n"),
    ("Action:", "Thought: {}\n", ""),
    ("", "{}\n", ""),
)
"""Opening of an action, and where the thought and the sentence that says what is done stand before it."""


def with_thought(action_format: ActionFormat, view: ScreenView, action: str, thought: str, summary: str) -> str | None:
    """Return the action of `emit` with a thought and a sentence about the action, either of which may be empty.

    A format without a place for both gets the thought alone. None if the format reads the result differently, because
    its replies have no words or these contain an action.
    """
    if _FIELD in action:
        reply = action.replace(_FIELD, f'"thought": {json.dumps(thought or summary, ensure_ascii=False)}', 1)
    else:
        _, thinks, says = next(place for place in _PLACES if action.startswith(place[0]))
        thought = thought if thought or says else summary
        reply = "".join(place.format(text) for place, text in ((thinks, thought), (says, summary)) if place and text)
        reply += action
    try:
        return reply if action_format.parse(reply, view) == action_format.parse(action, view) else None
    except ParseError:
        return None
