"""MAI-UI's function `mobile_use` on a desktop: x and y are 0..999 of the screen.

MAI-UI is trained on phones. What has a meaning on a desktop is read and offered: a finger that swipes up turns the
wheel down, a long press holds the left button for a second, and the system buttons `enter` and `back` are Return and
Alt+Left. `right_click` and `key` are Deskhand's, since a desktop cannot do without. `open`, the buttons `home` and
`menu`, `ask_user` and tools of its own are refused. A place may be a box: its center. A reply is `<thinking>`, then one
call.

Source: MAI-UI (Tongyi-MAI/MAI-UI at 4dd07b9e), `src/prompt.py`, `src/mai_naivigation_agent.py` and `tests/`; what a
swipe does: MobileWorld (Tongyi-MAI/MobileWorld at 6a4dec2d), `runtime/controller.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.actions.formats.json_format import JsonAction, JsonActionFormat
from deskhand.actions.formats.qwen import terminate
from deskhand.actions.formats.tool_calls import ToolCallFormat
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import REL_999, Point, Space, in_space
from deskhand.actions.pointer_merge import DIRECTIONS, direction_of
from deskhand.errors import AgentError

NOTCHES = 5
"""Wheel notches of a swipe; a swipe has no amount."""
WAIT_SECONDS, PRESS_SECONDS = 2.0, 1.0
_BUTTONS = {"enter": ir.Key(("enter",)), "back": ir.Key(("alt", "left"))}
_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}


def _place(key: str, field: str = "point", *, required: bool = True) -> JsonField:
    """A point as [x, y], or as the center of [left, top, right, bottom]."""
    axis = json_schema.number(0, 999)

    def read(values: Values) -> Fields:
        if key not in values:
            return {}
        numbers = values[key]
        if len(numbers) == 3:
            raise AgentError(f"{key} must hold 2 or 4 numbers, not 3")
        x, y = (sum(numbers[start::2]) * 2 / len(numbers) for start in (0, 1))
        return {field: Point(json_schema.whole_as_int(x), json_schema.whole_as_int(y), REL_999)}

    def write(fields: Values) -> dict[str, Any]:
        if fields[field] is None and not required:
            return {}
        if fields[field] is None:
            raise AgentError("it needs a point")
        point = in_space(fields[field], REL_999)
        return {key: [point.x, point.y]}

    keys, also = {key: json_schema.fixed_items(axis, axis)}, {key: json_schema.items(axis, 2, 4)}
    return JsonField(keys, (field,), read, write, (key,) if required else (), also)


def _swipe() -> JsonField:
    """A scroll by the direction of the finger, opposite to that of the wheel."""

    def read(values: Values) -> Fields:
        across, down = DIRECTIONS[_OPPOSITE[values["direction"]]]
        return {"dx": across * NOTCHES, "dy": down * NOTCHES}

    def write(fields: Values) -> dict[str, Any]:
        if (fields["dx"] == 0) == (fields["dy"] == 0):
            raise AgentError("a finger swipes in one direction")
        return {"direction": _OPPOSITE[direction_of(fields["dx"], fields["dy"])]}

    return JsonField({"direction": json_schema.one_of(*DIRECTIONS)}, ("dx", "dy"), read, write, ("direction",))


@lru_cache(maxsize=1)
def _json_actions() -> tuple[JsonAction, ...]:
    at, maybe_at = _place("coordinate"), _place("coordinate", required=False)
    center, corner = json_fields.sample_points(REL_999)
    any_time = json_fields.constant("seconds", WAIT_SECONDS)
    drag = json_fields.endpoints(_place("start_coordinate", "start"), _place("end_coordinate", "end"))
    button = json_fields.choice("button", "button", {name: name for name in _BUTTONS})
    left: dict[str, Any] = {"button": "left"}
    there = {"coordinate": [center.x, center.y]}
    about_press = "hold the left button there for a second"
    about_swipe = "scroll by a finger that moves up, down, left or right: up shows what is below"
    about_button = 'press Return, or with "back" go back in a browser'
    about_end = 'the task is done, or with "fail" it cannot be'
    return (
        JsonAction("click", ir.Click(center), "click the left button there", at, **left, count=1),
        JsonAction("double_click", ir.Click(center, count=2), "click it twice there", at, **left, count=2),
        JsonAction("right_click", ir.Click(center, "right"), "click the right button", at, button="right", count=1),
        JsonAction("long_press", None, about_press, at, make_ops=_press_ops, sample=there),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("key", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", PYAUTOGUI)),
        JsonAction("swipe", ir.Scroll(0, NOTCHES, center), about_swipe, _swipe(), maybe_at),
        JsonAction("drag", ir.Drag((center, corner)), "drag with the left button", drag),
        JsonAction(
            "system_button", None, about_button, button,
            make_ops=lambda fields: [_BUTTONS[fields["button"]]], sample={"button": "enter"},
        ),
        JsonAction("wait", ir.Wait(WAIT_SECONDS), f"wait {WAIT_SECONDS:g} seconds", any_time),
        *terminate("fail", about_end),
        JsonAction("answer", ir.Answer("42"), "the final answer in words", json_fields.text_field("text")),
    )  # fmt: skip


def _press_ops(fields: Fields) -> list[Any]:
    return [ir.MouseDown(fields["point"]), ir.Wait(PRESS_SECONDS), ir.MouseUp()]


class MaiUi(ToolCallFormat):
    name = "mai_ui"
    function = "mobile_use"
    separators = (",", ":")
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; left once or twice, right once; no keys held",
        ir.Drag: "left, from one point to another; no keys held",
        ir.Key: "keys that pyautogui names",
        ir.MouseDown: "long_press is read as the button down, a wait, and the button up",
        ir.MouseUp: "long_press is read as the button down, a wait, and the button up",
    }
    losses: Mapping[type[Any], str] = {
        ir.Scroll: f"any amount becomes {NOTCHES} notches; one axis at a time",
        ir.Wait: f"any time becomes {WAIT_SECONDS:g} seconds",
        ir.Fail: "the reason is omitted",
    }
    json_actions = staticmethod(lambda view: _json_actions())

    def space(self, view: ScreenView) -> Space:
        return REL_999

    def opening(self, view: ScreenView) -> list[str]:
        click = self.offered(view)[0]
        return [
            "You are a GUI agent: you get a task, your action history and screenshots, and do the next action.",
            "Write your plan within <thinking></thinking> tags, then one call, and nothing after it:",
            self.reply([self.action(click.name, click.shown)]),
            "x and y run from 0 to 999 over the screen's width and height, from the top left corner.",
            "The arguments of each action:",
        ]

    def prompt(self, view: ScreenView) -> str:
        """Return the actions one a line, as MAI-UI's own prompt has them."""
        return JsonActionFormat.prompt(self, view)


FORMAT = MaiUi()
