"""Fara-7B's function `computer_use`: a browser's, in pixels of the image as resized by Qwen2.5-VL.

What the published agent does with Playwright is done with mouse and keyboard: `type` clicks its place, may clear the
field, types and, unless `press_enter` is false, presses Return; `visit_url` and `web_search` type into the address bar;
`scroll` turns the wheel by a fixed amount, since that agent takes only the sign of `pixels`. The words before
`terminate` are the answer, or the reason of a failure; without words the task is done.

Source: Fara (microsoft/fara at 3f3f1fd8), `src/fara/_prompts.py`, `fara_agent.py`, `browser/playwright_controller.py`
and `README.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote_plus

from deskhand.actions import ops as ir
from deskhand.actions.formats import json_fields, json_schema
from deskhand.actions.formats.base import OpSupport, ScreenView
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.actions.formats.json_format import JsonAction
from deskhand.actions.formats.json_scan import NO_REASONING
from deskhand.actions.formats.limits import MAX_NUMBER, MAX_WAIT_S, check_text, truncate_repr
from deskhand.actions.formats.qwen import ABOUT_KEYS, terminate
from deskhand.actions.formats.reply_sections import end_of_reasoning
from deskhand.actions.formats.smart_resize import resized_size
from deskhand.actions.formats.tool_calls import ToolCallFormat
from deskhand.actions.key_names import PLAYWRIGHT
from deskhand.actions.ops import Op, Space
from deskhand.errors import AgentError, ParseError

NOTCHES, PIXELS = 3, 400
"""A scroll: notches that are turned, and the pixels of the published agent, which are written."""
WAIT_SECONDS = 3.0
"""Duration of a wait without `time`."""
MAX_URL = 2000
"""Characters of a page's address, and of a query."""
_SEARCH = "https://www.bing.com/search?q="
_TAG = "<tool_call>"


def _flag(key: str, default: bool) -> JsonField:
    """A flag; typing plain text is written with `press_enter` false."""
    written = {} if not default else {key: False}
    return JsonField(
        {key: json_schema.BOOLEAN}, (), lambda values: {key: values.get(key, default)}, lambda fields: written
    )


def _type_ops(fields: Fields) -> list[Any]:
    clicked = [ir.Click(fields["point"])] if fields.get("point") else []
    cleared = [ir.Key(("ctrl", "a")), ir.Key(("backspace",))] if fields["delete_existing_text"] else []
    return [*clicked, *cleared, ir.Type(fields["text"]), *([ir.Key(("enter",))] if fields["press_enter"] else [])]


def _go_to(url: str) -> list[Any]:
    return [ir.Key(("ctrl", "l")), ir.Type(url), ir.Key(("enter",))]


def _page() -> JsonField:
    """A scroll up or down; the sign of `pixels` counts."""

    def read(values: Values) -> Fields:
        pixels = values["pixels"]
        return {"dx": 0, "dy": NOTCHES * ((pixels < 0) - (pixels > 0))}

    def write(fields: Values) -> dict[str, Any]:
        if fields["dx"] or not fields["dy"]:
            raise AgentError("the page scrolls up or down here")
        return {"pixels": -PIXELS if fields["dy"] > 0 else PIXELS}

    return JsonField({"pixels": json_schema.number(-MAX_NUMBER, MAX_NUMBER)}, ("dx", "dy"), read, write, ("pixels",))


def _seconds() -> JsonField:
    rule = json_schema.number(0, MAX_WAIT_S)

    def read(values: Values) -> Fields:
        return {"seconds": json_schema.whole_as_int(values.get("time", values.get("duration", WAIT_SECONDS)))}

    def write(fields: Values) -> dict[str, Any]:
        return {"time": json_schema.whole_as_int(fields["seconds"])}

    return JsonField({"time": rule}, ("seconds",), read, write, also={"duration": rule})


@lru_cache(maxsize=64)
def _json_actions(space: Space) -> tuple[JsonAction, ...]:
    at = json_fields.pair("coordinate", space, required=True)
    maybe_at = json_fields.pair("coordinate", space)
    center, _ = json_fields.sample_points(space)
    field = JsonField(maybe_at.keys, (), maybe_at.read, lambda fields: {})
    where = JsonField({}, ("point",), maybe_at.read, maybe_at.write, also=maybe_at.keys)
    text = json_fields.text_field("text")
    flags = (_flag("press_enter", True), _flag("delete_existing_text", False))
    url, query = (json_fields.single(key, key, json_schema.text(1, MAX_URL), str, str) for key in ("url", "query"))
    chord = json_fields.key_list("keys", PLAYWRIGHT)
    left: dict[str, Any] = {"button": "left", "count": 1}
    about_type = "click the field if there is a coordinate, type the text, and press Return"
    about_fact = "remember something; nothing happens on the screen"
    return (
        JsonAction("key", ir.Key(("ctrl", "s")), "press keys together, by Playwright's names", chord),
        JsonAction("type", ir.Type("hello"), about_type, text, *flags, field, make_ops=_type_ops),
        JsonAction("mouse_move", ir.Move(center), "move the pointer there", at),
        JsonAction("left_click", ir.Click(center, **left), "click the left button there", at, **left),
        JsonAction("scroll", ir.Scroll(0, NOTCHES), "scroll where the pointer is", where, _page()),
        JsonAction(
            "visit_url", None, "open a page in the browser", url,
            make_ops=lambda fields: _go_to(fields["url"]), sample={"url": "https://example.org"},
        ),
        JsonAction(
            "web_search", None, "search the web", query,
            make_ops=lambda fields: _go_to(_SEARCH + quote_plus(fields["query"])), sample={"query": "weather"},
        ),
        JsonAction(
            "history_back", None, "go back in the browser",
            make_ops=lambda fields: [ir.Key(("alt", "left"))], sample={},
        ),
        JsonAction(
            "pause_and_memorize_fact", None, about_fact, json_fields.text_field("fact"),
            make_ops=lambda fields: [ir.Wait(0)], sample={"fact": "the total is 42"},
        ),
        JsonAction("wait", ir.Wait(1), "wait for the screen to change", _seconds()),
        *terminate(),
        JsonAction("click", None, "", at, make_ops=lambda fields: [ir.Click(**fields)]),
        JsonAction("hover", None, "", at, make_ops=lambda fields: [ir.Move(**fields)]),
        JsonAction("keypress", None, "", chord, make_ops=lambda fields: [ir.Key(**fields)]),
        JsonAction("input_text", None, "", text, *flags, field, make_ops=_type_ops),
        JsonAction("sleep", None, "", _seconds(), make_ops=lambda fields: [ir.Wait(**fields)]),
    )  # fmt: skip


class Fara(ToolCallFormat):
    name = "fara"
    split_kinds = frozenset({ir.Scroll})
    about_keys = ABOUT_KEYS | {
        "keys": "for `key`: names of keys, in order, such as Control or ArrowDown",
        "text": "for `type`",
        "press_enter": "for `type`: false to press no Return after",
        "delete_existing_text": "for `type`: true to clear the field before",
        "pixels": "for `scroll`: a positive number is up, a negative one down",
        "url": "for `visit_url`",
        "query": "for `web_search`",
        "fact": "for `pause_and_memorize_fact`",
        "status": "for `terminate`; the words before the call are the answer, if any",
    }
    notes: Mapping[type[Any], str] = {
        ir.Click: "at a point; left once; no keys held",
        ir.Key: "keys that Playwright names",
        ir.Wait: f"at most {MAX_WAIT_S:g} s",
        ir.Fail: "the reason is the words before `terminate`",
        ir.Answer: "the words before `terminate`",
    }
    losses: Mapping[type[Any], str] = {ir.Scroll: f"any amount becomes {NOTCHES} notches; up or down; no keys held"}
    json_actions = staticmethod(lambda view: _json_actions(resized_size(view)))

    def space(self, view: ScreenView) -> Space:
        return resized_size(view)

    @property
    def supported_ops(self) -> Any:
        return {**super().supported_ops, ir.Answer: OpSupport("lossless", self.notes[ir.Answer])}

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        ops = super().parse(text, view)
        words = text[end_of_reasoning(text, NO_REASONING) : max(text.find(_TAG), 0)].strip()
        if words and isinstance(ops[-1], ir.Done | ir.Fail):
            try:
                check_text("the text", words)
            except AgentError as error:
                raise ParseError((0, len(text)), str(error)) from None
            ops[-1] = ir.Answer(words) if isinstance(ops[-1], ir.Done) else ir.Fail(words)
        return ops

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        match ops:
            case [*before, ir.Answer(text=words) as last]:
                end: Op = ir.Done()
            case [*before, ir.Fail(reason=words) as last] if words:
                end = ir.Fail()
            case _:
                return super().emit(ops, view)
        reply = f"{check_text('the text', words)}\n{super().emit([*before, end], view)}"
        try:
            if self.parse(reply, view)[-1] == last:
                return reply
        except ParseError:
            pass
        raise AgentError(f"{self.name} cannot say {truncate_repr(words)}: it would be read as something else")


FORMAT = Fara()
