"""Languages whose actions are JSON objects. Invariant: one table of forms says what an action looks like, and the prompt, the JSON
schema, `parse` and `emit` all follow from it.

A form joins a name with an op, its parts join keys with fields (`parts.py`). How the objects stand in a reply (tags,
tool calls, message blocks) is the dialect's: it overrides the methods under "the shape of a reply".
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from deskhand.actions.formats import json_schema
from deskhand.actions.formats.base import OpSupport, ScreenView, carried
from deskhand.actions.formats.json_fields import JsonAction, Values
from deskhand.actions.formats.json_scan import Found, Span, parse_lenient_values
from deskhand.actions.formats.limits import check_length, check_ops, check_text, truncate_repr
from deskhand.actions.ops import TERMINAL_OPS, Answer, Done, Drag, Fail, Op
from deskhand.actions.pointer_merge import DragTo, merge_moves, split_moves
from deskhand.errors import AgentError, ParseError

INFEASIBLE = "[INFEASIBLE]"
"""What a model writes at the start of its last words when the task cannot be done."""


@dataclass(frozen=True, slots=True)
class FreeText:
    """Words of a reply that are no action: reasoning when an action follows, the end of the work when none does."""

    text: str


class JsonActionFormat(ABC):
    """A dialect made of forms. Subclasses give `name`, `forms` and, where it differs, the shape of a reply."""

    name: str
    tag = "action"
    """The key under which an action's name stands."""
    most = 64
    """Actions in a reply, at most."""
    separators = (", ", ": ")
    ends_by_words = False
    """A reply of words only ends the work (`Done`, `Fail` or `Answer`)."""
    null_is_nothing = True
    """A key whose value is null is read as if it were left out."""
    lists_options = True
    """The prompt names the optional keys of every form."""
    apart_kinds: frozenset[type[Any]] = frozenset()
    """Ops that cannot hold a point and are written behind a move."""
    notes: Mapping[type[Any], str] = {}
    """What of an op can be said, where that is not all, or what is done instead of one that is not carried."""
    losses: Mapping[type[Any], str] = {}
    """What is lost of an op that is written nevertheless."""

    @abstractmethod
    def forms(self, view: ScreenView) -> tuple[JsonAction, ...]:
        """The table. Cached by whoever implements it, as it is asked for with every reply."""

    def opening(self, view: ScreenView) -> list[str]:
        """The first lines of the prompt."""
        return []

    def closing(self, view: ScreenView) -> list[str]:
        """The last lines of the prompt: how the work ends, where words end it."""
        if not self.ends_by_words:
            return []
        return [
            f"To end the work write {self.written(self.words('what you found'))}, with an empty text if there is nothing to say,",
            f"or a text that begins with {INFEASIBLE} when the task cannot be done.",
        ]

    # The shape of a reply.

    def values(self, text: str) -> Found:
        """The JSON values of a reply. Raises `ParseError`."""
        return parse_lenient_values(text)

    def unwrapped(self, value: Any) -> list[Any]:
        """The actions (objects) and words (`Said`) in one value of a reply. Raises `AgentError`."""
        return [value]

    def named(self, action: Any) -> tuple[str, Values]:
        """An action's name and its keys. Raises `AgentError`."""
        if not isinstance(action, dict):
            raise AgentError(f"expected an object, not {truncate_repr(action)}")
        name = action.get(self.tag)
        return name if isinstance(name, str) else "", self.given(action, self.tag)

    def given(self, values: Values, *but: str) -> dict[str, Any]:
        """The keys that say something, `but` some."""
        return {
            key: value
            for key, value in values.items()
            if key not in but and not (value is None and self.null_is_nothing)
        }

    def action(self, name: str, values: Values) -> dict[str, Any]:
        """The reverse of `named`."""
        return {self.tag: name} | dict(values)

    def words(self, text: str) -> Any:
        """The reverse of `Said`: an object of words."""
        raise AgentError(f"{self.name} has no words")

    def reply(self, actions: Sequence[dict[str, Any]]) -> str:
        """The text of actions."""
        return self.written(actions[0] if len(actions) == 1 else list(actions))

    def schema_of(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        """The schema of an action, from that of its keys."""
        return properties | {
            "properties": {self.tag: {"const": name}, **properties["properties"]},
            "required": [self.tag, *properties["required"]],
        }

    def schema_of_reply(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        """The schema of a reply, from references to those of its actions."""
        one = {"oneOf": actions}
        return {"oneOf": [one, json_schema.items(one, 1, self.most)]} if self.most > 1 else one

    # What follows from the table.

    @cached_property
    def supported_ops(self) -> Mapping[type[Op], OpSupport]:
        """For every op of the IR."""
        written = {form.cls for form in self.forms(ScreenView.of_screen(1000, 1000)) if form.cls is not None}
        if DragTo in written:
            written.add(Drag)
        if self.ends_by_words:
            written |= {Done, Fail, Answer}
        return carried(written, self.notes, self.losses)

    def prompt(self, view: ScreenView) -> str:
        """How the model is told to write; everything that it offers is parsed."""
        offered = [form for form in self.forms(view) if form.offered]
        return "\n".join([*self.opening(view), *(self._line(form) for form in offered), *self.closing(view)])

    def _line(self, form: JsonAction) -> str:
        optional = [
            f'"{key}": {json_schema.describe_rule(rule)}' for key, rule in form.keys.items() if key not in form.shown
        ]
        notes = f"; optional {', '.join(optional)}" if optional and self.lists_options else ""
        return f"{self.written(self.action(form.name, form.shown))}  {form.about}{notes}"

    def schema(self, view: ScreenView) -> dict[str, Any] | None:
        """JSON schema (draft 2020-12) of replies that are JSON and nothing else."""
        offered = [form for form in self.forms(view) if form.offered]
        defined = {form.name: self.schema_of(form.name, form.schema()) for form in offered}
        references = [{"$ref": f"#/$defs/{name}"} for name in defined]
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$defs": defined,
            **self.schema_of_reply(references),
        }

    def parse(self, text: str, view: ScreenView) -> list[Op]:
        """Read a reply. Raises `ParseError` with the span that was not understood and the reason."""
        check_length(text)
        items = self._items(text)
        acting: list[tuple[Any, Span]] = []
        for item, span in items:
            if not isinstance(item, FreeText):
                acting.append((item, span))
            elif acting and item.text.strip():
                raise ParseError(span, "unexpected text after the action")
        if not acting:
            return [self._last_words(text, "\n".join(item.text for item, _ in items))]
        if not 1 <= len(acting) <= self.most:
            raise ParseError((0, len(text)), f"a reply holds {self._most()}, not {len(acting)}")
        # The first form of a name reads; others of that name only write.
        by_name = {form.name: form for form in reversed(self.forms(view))}
        ops: list[Any] = []
        for action, span in acting:
            try:
                if ops and isinstance(ops[-1], TERMINAL_OPS):
                    raise AgentError(f"nothing may follow {type(ops[-1]).__name__.lower()}")
                ops += self._read(action, by_name)
                self._check_whole(ops)
            except AgentError as error:
                raise ParseError(span, str(error)) from None
        return merge_moves(ops, self.apart_kinds - {DragTo})

    @staticmethod
    def _check_whole(ops: Sequence[Any]) -> None:
        too_long = check_ops(ops)
        if too_long is not None:
            raise AgentError(too_long[1])

    def _items(self, text: str) -> list[tuple[Any, Span]]:
        items: list[tuple[Any, Span]] = []
        for value, span in self.values(text):
            try:
                items += [(item, span) for item in self.unwrapped(value)]
            except AgentError as error:
                raise ParseError(span, str(error)) from None
        if not items:
            raise ParseError((0, len(text)), f"a reply holds {self._most()}, not 0")
        return items

    def _read(self, action: Any, by_name: Mapping[str, JsonAction]) -> list[Any]:
        name, values = self.named(action)
        if name not in by_name:
            said = action.get(self.tag) if isinstance(action, dict) and not name else name
            what = f"unknown {self.tag} {truncate_repr(said)}" if said else f"an action needs the key {self.tag}"
            raise AgentError(
                f"{what}; known: {', '.join(sorted(form.name for form in by_name.values() if form.offered))}"
            )
        return by_name[name].read(values)

    def _most(self) -> str:
        return "one action" if self.most == 1 else f"1 to {self.most} actions"

    def emit(self, ops: list[Op], view: ScreenView) -> str:
        """Write ops. Raises `AgentError` for what the dialect cannot say."""
        if any(isinstance(op, TERMINAL_OPS) for op in ops[:-1]):
            raise AgentError("nothing may follow done, fail or answer")
        if self.ends_by_words and ops and isinstance(ops[-1], TERMINAL_OPS):
            if len(ops) > 1:
                raise AgentError(f"{self.name} ends the work in a reply of its own")
            return self.written(self.words(_written_last_words(ops[-1])))
        self._check_whole(ops)
        forms = self.forms(view)
        actions = [self._action(part, forms) for op in ops for part in split_moves(op, self.apart_kinds)]
        if not 1 <= len(actions) <= self.most:
            raise AgentError(f"a reply holds {self._most()}, not {len(actions)}")
        return self.reply(actions)

    def _action(self, op: Any, forms: Sequence[JsonAction]) -> dict[str, Any]:
        reason = f"it has no {type(op).__name__}"
        for form in forms:
            if form.cls is type(op):
                try:
                    return self.action(form.name, form.write(op))
                except AgentError as error:
                    reason = str(error)
        raise AgentError(f"{self.name} cannot say {op}: {reason}")

    def written(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=self.separators)

    def _last_words(self, text: str, words: str) -> Op:
        if not self.ends_by_words:
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


def _written_last_words(op: Op) -> str:
    if isinstance(op, Fail):
        words = f"{INFEASIBLE} {op.reason}" if op.reason else INFEASIBLE
    else:
        words = op.text if isinstance(op, Answer) else ""
        if isinstance(op, Answer) and (not words.strip() or INFEASIBLE in words):
            raise AgentError("an answer must not be empty and must not say that the task cannot be done")
    return check_text("the text", words)
