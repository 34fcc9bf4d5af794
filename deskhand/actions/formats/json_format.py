"""Formats whose actions are JSON objects: one table of `JsonAction`s gives prompt, schema, `parse` and `emit`.

A `JsonAction` joins an action name with an op: `left_click` is a `Click` with button left (a fixed field) and a
`JsonField` that maps the key `coordinate` to the field `point`. JSON actions are built per view, because the bounds of
coordinates depend on the image size. A format overrides the methods under "Reply layout" to place the objects in a
reply (tags, tool calls, message blocks).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.base import OpSupport, ScreenView, support_of_ops
from deskhand.actions.formats.json_fields import Fields, JsonField, Values
from deskhand.actions.formats.json_scan import Found, Span, parse_lenient_values
from deskhand.actions.formats.limits import check_length, check_ops, check_text, truncate_repr
from deskhand.actions.ops import TERMINAL_OPS, Answer, Done, Drag, Fail, Op
from deskhand.actions.pointer_merge import DragTo, merge_moves, split_moves
from deskhand.errors import AgentError, ParseError

INFEASIBLE = "[INFEASIBLE]"
"""Prefix of a final message that reports an infeasible task."""
CLICKS: dict[str, tuple[dict[str, Any], str]] = {
    "left_click": ({"button": "left", "count": 1}, "click the left button"),
    "right_click": ({"button": "right", "count": 1}, "click the right button"),
    "middle_click": ({"button": "middle", "count": 1}, "click the middle button"),
    "double_click": ({"button": "left", "count": 2}, "click the left button twice"),
    "triple_click": ({"button": "left", "count": 3}, "click the left button three times"),
}
"""Click names shared by several vendors, with their fixed fields and prompt text."""


class JsonAction:
    """One action: its name, the JSON fields it takes, and the op fields that the name implies (`fixed`).

    `op` is the example shown in the prompt, or an op class; without it the action is only parsed. `make_ops` builds the
    ops if an action is not a single op. `sample` is shown in the prompt instead of an example; with neither, the prompt
    omits the action.
    """

    def __init__(
        self,
        name: str,
        op: Any = None,
        about: str = "",
        *parts: JsonField,
        make_ops: Callable[[Fields], list[Any]] | None = None,
        sample: Values | None = None,
        **fixed: Any,
    ) -> None:
        self.name, self.about, self.parts, self.fixed = name, about, parts, fixed
        self.cls: Any = op if op is None or isinstance(op, type) else type(op)
        self.example = None if isinstance(op, type) else op
        self._make_ops = make_ops or (lambda op_fields: [self.cls(**op_fields)])
        self.offered = self.example is not None or sample is not None
        self.keys = {key: rule for part in parts for key, rule in part.keys.items()}
        """Schema rules of the keys in the prompt, in writing order."""
        self._required = tuple(key for part in parts for key in part.required)
        self._required_to_parse = tuple(key for part in parts if not part.lenient for key in part.required)
        self._sample = dict(sample or {})
        self._rules = self.keys | {key: rule for part in parts for key, rule in part.also.items()}

    @cached_property
    def shown(self) -> dict[str, Any]:
        """Keys and values shown in the prompt."""
        return self._sample if self.example is None else self.write(self.example)

    def read(self, values: Values) -> list[Any]:
        """Return the ops (or `DragTo`) of an action. Raises `AgentError` if it is invalid."""
        json_schema.check_keys(self.name, values, self._rules, self._required_to_parse)
        op_fields: Fields = dict(self.fixed)
        for part in self.parts:
            try:
                op_fields |= part.read(values)
            except AgentError as error:
                raise AgentError(f"{self.name}: {error}") from None
        return self._make_ops(op_fields)

    def write(self, op: Any) -> dict[str, Any]:
        """Return the keys for `op`. Raises `AgentError` if this action cannot express it."""
        covered = {name for part in self.parts for name in part.fields}
        values: dict[str, Any] = {}
        for item in fields(op):
            value = values[item.name] = getattr(op, item.name)
            if item.name in self.fixed:
                if value != self.fixed[item.name]:
                    raise AgentError(f"{item.name} cannot be {value!r}")
            elif item.name not in covered and (item.default is MISSING or value != item.default):
                raise AgentError(f"it has no {item.name}")
        written = {key: value for part in self.parts for key, value in part.write(values).items()}
        json_schema.check_keys(self.name, written, self.keys, self._required)
        return written

    def schema(self) -> dict[str, Any]:
        depending = {
            key: [other for other in part.keys if other != key]
            for part in self.parts
            if len(part.keys) > 1 and not part.required
            for key in part.keys
        }
        schema = json_schema.object_of(**self.keys) | {"required": list(self._required)}
        return schema | ({"dependentRequired": depending} if depending else {})


@dataclass(frozen=True, slots=True)
class FreeText:
    """Text of a reply outside of actions: reasoning before an action, or a final message without one."""

    text: str


class JsonActionFormat:
    """Subclasses define `name`, `json_actions` and, where it differs, the reply layout."""

    name: str
    json_actions: Callable[[ScreenView], tuple[JsonAction, ...]]
    """Returns the table of actions; cached, because it is used for every reply."""
    tag = "action"
    """Key of the action name."""
    max_actions = 64
    """Maximum number of actions in a reply."""
    separators = (", ", ": ")
    ends_with_text = False
    """A reply of text alone ends the episode (`Done`, `Fail` or `Answer`)."""
    ignore_nulls = True
    """Treat keys with null values as absent."""
    prompt_lists_options = True
    """List the optional keys of every action in the prompt."""
    split_kinds: frozenset[type[Any]] = frozenset()
    """Ops without a point of their own, written after a move."""
    notes: Mapping[type[Any], str] = {}
    """Restrictions of supported ops, and substitutes for unsupported ones."""
    losses: Mapping[type[Any], str] = {}
    """Information lost when writing an op."""

    def opening(self, view: ScreenView) -> list[str]:
        """Return the first lines of the prompt."""
        return []

    def closing(self, view: ScreenView) -> list[str]:
        """Return the last lines of the prompt: how to end the episode."""
        if not self.ends_with_text:
            return []
        return [
            f"To end the work write {self.dumps(self.text_value('what you found'))}, with an empty "
            "text if there is nothing to say,",
            f"or a text that begins with {INFEASIBLE} when the task cannot be done.",
        ]

    # Reply layout.

    def values(self, text: str) -> Found:
        """Return the JSON values of a reply. Raises `ParseError`."""
        return parse_lenient_values(text)

    def unwrap(self, value: Any) -> list[Any]:
        """Return the actions (objects) and `FreeText` of one JSON value. Raises `AgentError`."""
        return [value]

    def split_name(self, action: Any) -> tuple[str, Values]:
        """Return the name and keys of an action. Raises `AgentError`."""
        if not isinstance(action, dict):
            raise AgentError(f"expected an object, not {truncate_repr(action)}")
        name = action.get(self.tag)
        return name if isinstance(name, str) else "", self.without_keys(action, self.tag)

    def without_keys(self, values: Values, *excluded: str) -> dict[str, Any]:
        """Return the keys without `excluded` and ignored nulls."""
        return {
            key: value
            for key, value in values.items()
            if key not in excluded and not (value is None and self.ignore_nulls)
        }

    def action(self, name: str, values: Values) -> dict[str, Any]:
        """Reverse `split_name`."""
        return {self.tag: name} | dict(values)

    def text_value(self, text: str) -> Any:
        """Return the JSON value of a text reply."""
        raise AgentError(f"{self.name} has no words")

    def confirms_end(self, op: Any, action: Any) -> bool:
        """Return whether `action` only repeats that `op` ended the episode; it is then allowed after it."""
        return False

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        """Return the reply with these actions."""
        return self.dumps(actions[0] if len(actions) == 1 else list(actions))

    def action_schema(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of an action, given the schema of its keys."""
        return properties | {
            "properties": {self.tag: {"const": name}, **properties["properties"]},
            "required": [self.tag, *properties["required"]],
        }

    def reply_schema(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the schema of a reply, given references to the action schemas."""
        one = {"oneOf": actions}
        return {"oneOf": [one, json_schema.items(one, 1, self.max_actions)]} if self.max_actions > 1 else one

    # Derived from the table.

    def offered(self, view: ScreenView) -> list[JsonAction]:
        return [json_action for json_action in self.json_actions(view) if json_action.offered]

    @property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        written = {json_action.cls for json_action in self.json_actions(ScreenView.of_screen(1000, 1000))}
        if DragTo in written:
            written.add(Drag)
        if self.ends_with_text:
            written |= {Done, Fail, Answer}
        return support_of_ops(written, self.notes, self.losses)

    def prompt(self, view: ScreenView) -> str:
        return "\n".join([*self.opening(view), *map(self._prompt_line, self.offered(view)), *self.closing(view)])

    def _prompt_line(self, json_action: JsonAction) -> str:
        hidden = {key: rule for key, rule in json_action.keys.items() if key not in json_action.shown}
        optional = [f'"{key}": {json_schema.describe_rule(rule)}' for key, rule in hidden.items()]
        notes = f"; optional {', '.join(optional)}" if optional and self.prompt_lists_options else ""
        return f"{self.dumps(self.action(json_action.name, json_action.shown))}  {json_action.about}{notes}"

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        defined = {action.name: self.action_schema(action.name, action.schema()) for action in self.offered(view)}
        reply = self.reply_schema([{"$ref": f"#/$defs/{name}"} for name in defined])
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": defined, **reply}

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        check_length(text)
        items = self._items(text)
        acting: list[tuple[Any, Span]] = []
        for item, span in items:
            if not isinstance(item, FreeText):
                acting.append((item, span))
            elif acting and item.text.strip():
                raise ParseError(span, "unexpected text after the action")
        if not acting:
            return [self._terminal_op(text, "\n".join(item.text for item, _ in items))]
        if not 1 <= len(acting) <= self.max_actions:
            raise ParseError((0, len(text)), f"a reply holds {self._action_count()}, not {len(acting)}")
        # The first action of a name is used for parsing; others of that name only for writing.
        by_name = {json_action.name: json_action for json_action in reversed(self.json_actions(view))}
        ops: list[Any] = []
        for action, span in acting:
            if ops and self.confirms_end(ops[-1], action):
                continue
            try:
                if ops and isinstance(ops[-1], TERMINAL_OPS):
                    raise AgentError(f"nothing may follow {type(ops[-1]).__name__.lower()}")
                ops += self._read(action, by_name)
                self._check_whole(ops)
            except AgentError as error:
                raise ParseError(span, str(error)) from None
        return merge_moves(ops, self.split_kinds - {DragTo})

    @staticmethod
    def _check_whole(ops: Sequence[Any]) -> None:
        too_long = check_ops(ops)
        if too_long is not None:
            raise AgentError(too_long[1])

    def _items(self, text: str) -> list[tuple[Any, Span]]:
        items: list[tuple[Any, Span]] = []
        for value, span in self.values(text):
            try:
                items += [(item, span) for item in self.unwrap(value)]
            except AgentError as error:
                raise ParseError(span, str(error)) from None
        if not items:
            raise ParseError((0, len(text)), f"a reply holds {self._action_count()}, not 0")
        return items

    def _read(self, action: Any, by_name: Mapping[str, JsonAction]) -> list[Any]:
        name, values = self.split_name(action)
        if name not in by_name:
            said = action.get(self.tag) if isinstance(action, dict) and not name else name
            what = f"unknown {self.tag} {truncate_repr(said)}" if said else f"an action needs the key {self.tag}"
            known = sorted(json_action.name for json_action in by_name.values() if json_action.offered)
            raise AgentError(f"{what}; known: {', '.join(known)}")
        return by_name[name].read(values)

    def _action_count(self) -> str:
        return "one action" if self.max_actions == 1 else f"1 to {self.max_actions} actions"

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        if any(isinstance(op, TERMINAL_OPS) for op in ops[:-1]):
            raise AgentError("nothing may follow done, fail or answer")
        if self.ends_with_text and ops and isinstance(ops[-1], TERMINAL_OPS):
            if len(ops) > 1:
                raise AgentError(f"{self.name} ends the work in a reply of its own")
            return self.dumps(self.text_value(_text_of(ops[-1])))
        self._check_whole(ops)
        json_actions = self.json_actions(view)
        actions = [self._action(part, json_actions) for op in ops for part in split_moves(op, self.split_kinds)]
        if not 1 <= len(actions) <= self.max_actions:
            raise AgentError(f"a reply holds {self._action_count()}, not {len(actions)}")
        return self.reply(actions)

    def _action(self, op: Any, json_actions: Sequence[JsonAction]) -> dict[str, Any]:
        reason = f"it has no {type(op).__name__}"
        for json_action in json_actions:
            if json_action.cls is type(op):
                try:
                    return self.action(json_action.name, json_action.write(op))
                except AgentError as error:
                    reason = str(error)
        raise AgentError(f"{self.name} cannot say {op}: {reason}")

    def dumps(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=self.separators)

    def _terminal_op(self, text: str, words: str) -> Op:
        if not self.ends_with_text:
            raise ParseError((0, len(text)), "no action found")
        try:
            check_text("the text", words)
        except AgentError as error:
            raise ParseError((0, len(text)), str(error)) from None
        if not words.strip():
            return Done()
        if words.startswith(INFEASIBLE):
            return Fail(words.removeprefix(INFEASIBLE).removeprefix(" "))
        return Fail(words) if INFEASIBLE in words else Answer(words)


def _text_of(op: Op) -> str:
    if isinstance(op, Fail):
        words = f"{INFEASIBLE} {op.reason}" if op.reason else INFEASIBLE
    else:
        words = op.text if isinstance(op, Answer) else ""
        if isinstance(op, Answer) and (not words.strip() or INFEASIBLE in words):
            raise AgentError("an answer must not be empty and must not say that the task cannot be done")
    return check_text("the text", words)
