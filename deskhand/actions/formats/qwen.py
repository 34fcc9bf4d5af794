"""Qwen's function `computer_use`, and EvoCUA's, which is Qwen3-VL's with held keys.

Qwen2.5-VL uses pixels of the image after its own resizing; Qwen3-VL, Qwen3.5 and EvoCUA use 0..1000 of the screen. A
reply is reasoning (optionally in `<think>`, optionally a line "Action: ..."), then calls (`tool_calls.py`): Qwen3.5
writes XML, the others JSON, and each reads both. The key `pixels` is notches of the wheel, as in the published agents,
which pass it to `pyautogui.scroll`; positive is up and right. A drag starts at the pointer. With Qwen3.5, `text` of a
click or scroll names keys held meanwhile.

Sources: OSWorld `mm_agents/qwen25vl_agent.py`, `qwen3vl_agent.py`, `evocua/evocua_agent.py` and `owl15_agent.py`;
`qwen35vl_agent.py` as in mrwwk/DeskCraft at 3e11457c; EvoCUA's repository (meituan/EvoCUA at 4a0ad5fd), prompt S2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField
from deskhand.actions.formats.json_format import CLICKS, JsonAction
from deskhand.actions.formats.limits import MAX_NUMBER, MAX_SCROLL_NOTCHES, MAX_WAIT_S
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.formats.tool_calls import ToolCallFormat
from deskhand.actions.key_names import PYAUTOGUI
from deskhand.actions.ops import REL_1000, Space
from deskhand.actions.pointer_merge import DragTo

WAIT_SECONDS = 2.0
"""Duration of a wait without `time`: the pause of OSWorld's `step`."""
ABOUT_KEYS = {
    "keys": "for `key`: names of keys, in order",
    "text": "for `type` and `answer`",
    "coordinate": "(x, y) from the top left corner",
    "pixels": "for `scroll` and `hscroll`: notches of the wheel; positive is up, or right",
    "time": "for `wait`: seconds",
    "status": "for `terminate`",
}
_SUCCESS = {"status": "success"}


@lru_cache(maxsize=64)
def _json_actions(space: Space, held: bool) -> tuple[JsonAction, ...]:
    at, must_be_at = json_fields.pair("coordinate", space), json_fields.pair("coordinate", space, required=True)
    center, corner = json_fields.sample_points(space)
    vertical, horizontal = (wheel(*keys) for keys in ((None, "pixels"), ("pixels", None)))
    where = JsonField({}, ("point",), at.read, at.write, also=at.keys)
    chord = json_fields.chord(("text",), PYAUTOGUI, "modifiers", required=False)
    meanwhile = (chord,) if held else ()
    to = replace(must_be_at, also={"duration": json_schema.number(0, MAX_WAIT_S)})
    about_drag = "drag with the left button from where the pointer is"
    return (
        JsonAction("key", ir.Key(("ctrl", "s")), "press keys together", json_fields.key_list("keys", PYAUTOGUI)),
        JsonAction("type", ir.Type("hello"), "type the text", json_fields.text_field("text")),
        JsonAction("mouse_move", ir.Move(center), "move the pointer there", must_be_at),
        *(
            JsonAction(name, ir.Click(center, **fixed), f"{about} there, or where the pointer is", *parts, **fixed)
            for parts in [(at, *meanwhile)]
            for name, (fixed, about) in CLICKS.items()
        ),
        JsonAction("click", None, "", at, *meanwhile, make_ops=lambda fields: [ir.Click(**fields)]),
        JsonAction("left_click_drag", DragTo(corner), about_drag, to),
        JsonAction("scroll", ir.Scroll(0, 3), "turn the wheel up or down", where, vertical, *meanwhile),
        JsonAction("hscroll", ir.Scroll(3, 0), "turn the wheel left or right", where, horizontal, *meanwhile),
        *_hold_keys(offered=False),
        JsonAction("wait", ir.Wait(1), "wait for the screen to change", seconds(WAIT_SECONDS)),
        *terminate(),
        JsonAction("answer", ir.Answer("42"), "the final answer in words", json_fields.text_field("text")),
    )


@lru_cache(maxsize=1)
def _evocua_actions() -> tuple[JsonAction, ...]:
    """Return Qwen3-VL's actions with held keys; `hscroll` and `answer`, which EvoCUA's schema leaves out, are read."""
    read_only = {"hscroll": lambda fields: [ir.Scroll(**fields)], "answer": lambda fields: [ir.Answer(**fields)]}
    found: list[JsonAction] = []
    for action in _json_actions(REL_1000, False):
        if action.name in read_only:
            found.append(JsonAction(action.name, None, "", *action.parts, make_ops=read_only[action.name]))
        elif not action.name.startswith("key_"):
            found.append(action)
    return (*found, *_hold_keys(offered=True))


def _hold_keys(*, offered: bool) -> tuple[JsonAction, JsonAction]:
    """Return the actions that press keys in order, and release them in reverse; one key is written."""
    keys = json_fields.single(
        "keys",
        "key",
        json_fields.key_list("keys", PYAUTOGUI).keys["keys"],
        lambda names: [PYAUTOGUI.read(name) for name in names],
        lambda key: [PYAUTOGUI.write_in_json(key)],
    )
    down, up = (ir.KeyDown("shift"), ir.KeyUp("shift")) if offered else (None, None)
    about_down, about_up = "press keys and hold them", "release keys"
    return (
        JsonAction("key_down", down, about_down, keys, make_ops=lambda fields: [*map(ir.KeyDown, fields["key"])]),
        JsonAction("key_up", up, about_up, keys, make_ops=lambda fields: [*map(ir.KeyUp, reversed(fields["key"]))]),
    )


def seconds(default: float) -> JsonField:
    """The field of a wait, under `time`; without it, `default` seconds."""
    return json_fields.or_default(
        json_fields.number_field("time", "seconds", json_schema.number(0, MAX_WAIT_S)), {"seconds": default}
    )


def wheel(dx: str | None, dy: str | None) -> JsonField:
    """Return the field of a scroll. Amounts beyond the limit are the most notches: the published agents turn the wheel
    by -1000 as well, which reaches the end of any page."""
    notches = json_fields.wheel(dx, dy, y_sign=-1, whole=False)

    def read(values: json_fields.Values) -> Fields:
        bound = {key: max(-MAX_SCROLL_NOTCHES, min(MAX_SCROLL_NOTCHES, values[key])) for key in notches.keys}
        return notches.read(bound)

    return replace(notches, read=read, also=dict.fromkeys(notches.keys, json_schema.number(-MAX_NUMBER, MAX_NUMBER)))


def terminate(failure: str = "failure", about: str = "end the work: done, or impossible") -> tuple[JsonAction, ...]:
    """Return the action that ends the work; without `status` it is done."""
    status = json_fields.or_default(
        json_fields.choice("status", "status", {"success": ir.Done, failure: ir.Fail}), {"status": ir.Done}
    )
    return (
        JsonAction("terminate", None, about, status, make_ops=_end_ops, sample={"status": "success"}),
        JsonAction("terminate", ir.Done, "", _status("success")),
        JsonAction("terminate", ir.Fail, "", _status(failure), json_fields.constant("reason")),
    )


def _end_ops(fields: Fields) -> list[Any]:
    return [fields["status"]()]


def _status(value: str) -> JsonField:
    return JsonField(
        {"status": json_schema.one_of(value)}, (), lambda values: {}, lambda fields: {"status": value}, ("status",)
    )


class Qwen(ToolCallFormat):
    """The function of one model generation; `absolute` uses pixels of the resized image."""

    split_kinds = frozenset({ir.Scroll, DragTo})
    about_keys = ABOUT_KEYS
    notes: Mapping[type[Any], str] = {
        ir.Click: "left, middle or right once; left twice or three times; no keys held",
        ir.Drag: "left, from one point to another: mouse_move and left_click_drag",
        ir.Scroll: "one direction at a time; no keys held; a point is a mouse_move before it",
        ir.Key: "keys that pyautogui names",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
    }
    losses: Mapping[type[Any], str] = {ir.Fail: "the reason is omitted"}

    def __init__(self, name: str, *, absolute: bool) -> None:
        self.name = name
        self.absolute = absolute
        self.json_actions = lambda view: _json_actions(self.space(view), False)

    def space(self, view: ScreenView) -> Space:
        return resized_size(view) if self.absolute else REL_1000

    def confirms_end(self, op: Any, action: Any) -> bool:
        """A `terminate` after an `answer` ends the same episode; the published models write both."""
        return isinstance(op, ir.Answer) and action in ({"action": "terminate"}, {"action": "terminate"} | _SUCCESS)


class Qwen35(Qwen):
    """XML calls; clicks and scrolls with keys held."""

    writes_xml = True
    about_keys = ABOUT_KEYS | {
        "text": "for `type` and `answer`; for clicks and scrolls: keys held meanwhile, such as ctrl+shift"
    }
    notes: Mapping[type[Any], str] = {
        **Qwen.notes,
        ir.Click: "left, middle or right once; left twice or three times",
        ir.Scroll: "one direction at a time; a point is a mouse_move before it",
        ir.Type: "a text without </parameter>",
        ir.Answer: "a text without </parameter>",
    }

    def __init__(self, name: str) -> None:
        super().__init__(name, absolute=False)
        self.json_actions = lambda view: _json_actions(REL_1000, True)

    def xml_value(self, text: str, key: str, start: int, end: int) -> Any:
        """The published agent reads `keys` without brackets as one key."""
        if key == "keys" and not text[start:end].lstrip().startswith("["):
            return [text[start:end].strip()]
        return super().xml_value(text, key, start, end)


class EvoCUA(Qwen):
    """Qwen3-VL's function with `key_down` and `key_up`."""

    about_keys = ABOUT_KEYS | {
        "keys": "for `key`, `key_down` and `key_up`: names of keys, in order",
        "text": "for `type`",
        "pixels": "for `scroll`: notches of the wheel; positive is up",
    }
    notes: Mapping[type[Any], str] = {
        **Qwen.notes,
        ir.Scroll: "up or down; no keys held; a point is a mouse_move before it",
        ir.KeyDown: "keys that pyautogui names",
        ir.KeyUp: "keys that pyautogui names",
        ir.Answer: "`answer` is read",
    }

    def __init__(self, name: str) -> None:
        super().__init__(name, absolute=False)
        self.json_actions = lambda view: _evocua_actions()


QWEN25 = Qwen("qwen25_vl", absolute=True)
QWEN3 = Qwen("qwen3_vl", absolute=False)
QWEN35 = Qwen35("qwen35")
EVOCUA = EvoCUA("evocua")
