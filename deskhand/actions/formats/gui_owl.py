"""GUI-Owl 7B and 32B (Mobile-Agent-v3): `computer_use` in pixels of the image as resized by Qwen2.5-VL.

Unlike Qwen's function, `click` is the left button, `drag` names both ends, and `type` may clear the field before and
press Return after. A reply is `<thinking>`, one call, and `<conclusion>`, which is skipped. GUI-Owl 1.5 has Qwen3-VL's
function: use `qwen3_vl`.

Source: `mm_agents/owl_agent.py` of OSWorld, as in mrwwk/DeskCraft at 3e11457c, with its prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField
from deskhand.actions.formats.json_format import JsonAction
from deskhand.actions.formats.json_scan import Found
from deskhand.actions.formats.limits import MAX_WAIT_S
from deskhand.actions.formats.qwen import ABOUT_KEYS, seconds, terminate, wheel
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.formats.tool_calls import ToolCallFormat
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import Space

WAIT_SECONDS = 1.0
"""Duration of a wait without `time`."""
_CONCLUSION = re.compile(r"</tool_call>\s*+(<conclusion>(?:(?!</?conclusion>).)*+(?:</conclusion>)?\s*+)\Z", re.DOTALL)
_CLICKS: dict[str, tuple[dict[str, Any], str]] = {
    "click": ({"button": "left", "count": 1}, "click the left button there"),
    "right_click": ({"button": "right", "count": 1}, "click the right button there"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button there"),
    "double_click": ({"button": "left", "count": 2}, "click the left button twice there"),
}


def _flag(key: str) -> JsonField:
    """A flag that is 1 or 0; it is not written."""
    rule = json_schema.integer(0, 1)
    return JsonField({key: rule}, (), lambda values: {key: bool(values.get(key, 0))}, lambda fields: {})


def _type_ops(fields: Fields) -> list[Any]:
    cleared = [ir.Key(("ctrl", "a")), ir.Key(("backspace",))] if fields["clear"] else []
    return [*cleared, ir.Type(fields["text"]), *([ir.Key(("enter",))] if fields["enter"] else [])]


@lru_cache(maxsize=64)
def _json_actions(space: Space) -> tuple[JsonAction, ...]:
    at = json_fields.pair("coordinate", space, required=True)
    center, corner = json_fields.sample_points(space)
    drag = json_fields.endpoints(
        json_fields.pair("coordinate", space, "start", required=True),
        json_fields.pair("coordinate2", space, "end", required=True),
    )
    notches = wheel(None, "pixels")
    text = (json_fields.text_field("text"), _flag("clear"), _flag("enter"))
    return (
        JsonAction("key", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", PYAUTOGUI)),
        JsonAction("type", ir.Type("hello"), "type the text", *text, make_ops=_type_ops),
        JsonAction("mouse_move", ir.Move(center), "move the pointer there", at),
        *(JsonAction(name, ir.Click(center, **fixed), about, at, **fixed) for name, (fixed, about) in _CLICKS.items()),
        JsonAction("drag", ir.Drag((center, corner)), "drag with the left button from one place to the other", drag),
        JsonAction("left_click", None, "", at, make_ops=lambda fields: [ir.Click(**fields)]),
        JsonAction("left_click_drag", None, "", drag, make_ops=lambda fields: [ir.Drag(**fields)]),
        JsonAction("scroll", ir.Scroll(0, 3), "turn the wheel where the pointer is", notches),
        JsonAction("wait", ir.Wait(1), "wait for the screen to change", seconds(WAIT_SECONDS)),
        *terminate(),
    )


class GuiOwl(ToolCallFormat):
    name = "gui_owl"
    split_kinds = frozenset({ir.Scroll})
    about_keys = ABOUT_KEYS | {
        "text": "for `type`",
        "clear": "for `type`: 1 to clear the field before",
        "enter": "for `type`: 1 to press Return after",
        "coordinate2": "(x, y) where a `drag` ends",
        "pixels": "for `scroll`: notches of the wheel, at best -5 to 5; positive is up",
    }
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; left, middle or right once, left twice; no keys held",
        ir.Drag: "left, from one point to another; no keys held",
        ir.Scroll: "up or down; no keys held; a point is a mouse_move before it",
        ir.Key: "keys that pyautogui names",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
    }
    losses: Mapping[type[Any], str] = {ir.Fail: "the reason is omitted"}
    json_actions = staticmethod(lambda view: _json_actions(resized_size(view)))

    def space(self, view: ScreenView) -> Space:
        return resized_size(view)

    def values(self, text: str) -> Found:
        conclusion = _CONCLUSION.search(text)
        return super().values(text[: conclusion.start(1)] if conclusion else text)


FORMAT = GuiOwl()
