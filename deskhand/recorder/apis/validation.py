"""Reading request bodies. Invariant: every field of a body is read, is neutral, or is refused by its path.

The checks here are shared by the APIs; each raises `RequestRefused` naming the parameter.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from deskhand.recorder.messages import ToolCall
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Feature, Grammar

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_TOOLS = 128


def unsupported(name: str, reason: str = "") -> InvalidRequestError:
    """The refusal of a parameter that cannot be honoured."""
    return InvalidRequestError(
        f"{name} is not supported{': ' + reason if reason else ' by this endpoint; leave it out'}",
        param=name,
        code="unsupported_parameter",
    )


def reject_unknown_fields(
    body: Mapping[str, Any], honoured: Collection[str], neutral: Mapping[str, tuple[Any, ...]], where: str = ""
) -> None:
    """Refuse what is neither honoured nor null nor has a neutral value."""
    for name, value in body.items():
        if name in honoured or value is None:
            continue
        if name not in neutral:
            raise unsupported(where + name)
        if not any(type(value) is type(one) and value == one for one in neutral[name]):
            raise unsupported(where + name, f"{repr(value)[:80]}; leave it out")


def read_field(body: Mapping[str, Any], name: str, kind: type, default: Any, where: str = "") -> Any:
    """The value of a field, checked to be of a type; an int is a float."""
    value = body.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise InvalidRequestError(
            f"{where}{name} must be a {kind.__name__}, not {repr(value)[:80]}", param=where + name
        )
    if isinstance(value, str):
        return check_encodable(value, where + name)
    return value


def in_range(value: Any, low: float, high: float, name: str) -> Any:
    """A number in a closed range."""
    if not low <= value <= high:
        raise InvalidRequestError(f"{name}={value} is outside {low:g}..{high:g}", param=name)
    return value


def seed_of(body: Mapping[str, Any]) -> int | None:
    """A seed that every engine takes."""
    seed = read_field(body, "seed", int, None)
    return None if seed is None else in_range(seed, -(2**63), 2**63 - 1, "seed")


def max_tokens_of(value: int, name: str) -> int:
    """At least one token."""
    return in_range(value, 1, math.inf, name)


def check_encodable(text: str, where: str) -> str:
    """A text that tokenisers take."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            "the text holds half a surrogate pair, which no tokeniser takes", param=where
        ) from None
    return text


def as_list(value: Any, where: str) -> list[Any]:
    """A list that is not empty."""
    if not isinstance(value, list) or not value:
        raise InvalidRequestError(f"{where} must be a list of at least one item", param=where)
    return value


def require_feature(feature: Feature, features: Collection[str], name: str) -> None:
    """Refuse a parameter that the engine cannot honour."""
    if feature not in features:
        raise unsupported(name, f"the engine behind this endpoint has no {feature}")


def schema_grammar(schema: Any, features: Collection[str], where: str) -> Grammar:
    """A grammar of a JSON Schema."""
    if not isinstance(schema, Mapping):
        raise InvalidRequestError(f"{where} must be a JSON Schema object", param=where)
    require_feature("json_schema", features, where)
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))


def regex_grammar(pattern: Any, features: Collection[str], where: str) -> Grammar:
    """A grammar of a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise InvalidRequestError(f"{where} is no regular expression: {error}", param=where) from None
    require_feature("regex", features, where)
    return Grammar("regex", pattern)


def tool_definition(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool as OpenAI's chat completions define it, which is what chat templates take."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidRequestError(
            "a tool's name is 1 to 64 letters, digits, dots, dashes or underscores", param=f"{where}.name"
        )
    if description is not None and not isinstance(description, str):
        raise InvalidRequestError("a tool's description must be a string", param=f"{where}.description")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise InvalidRequestError("a tool's parameters must be a JSON Schema object", param=f"{where}.parameters")
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = check_encodable(description, f"{where}.description")
    if parameters is not None:
        check_encodable(json.dumps(parameters, ensure_ascii=False), f"{where}.parameters")
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_call(name: Any, arguments: Any, where: str) -> ToolCall:
    """A call in an assistant's turn. `arguments` is an object or one as JSON text."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidRequestError("a tool call needs the name of a tool", param=f"{where}.name")
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise InvalidRequestError("a tool call's arguments must be a JSON object", param=f"{where}.arguments")
    return ToolCall(
        name, check_encodable(arguments if isinstance(arguments, str) else json.dumps(found, ensure_ascii=False), where)
    )


def reward_of(body: Mapping[str, Any]) -> tuple[float, str | None, bool]:
    """(reward, the call that it is for or None, whether it is for the session as a whole)."""
    value = read_field(body, "reward", float, None)
    if value is None:
        raise InvalidRequestError("reward must be a finite number", param="reward")
    call_id, whole = read_field(body, "call_id", str, None), read_field(body, "whole", bool, False)
    if whole and call_id is not None:
        raise InvalidRequestError("give call_id or whole, not both", param="whole")
    return value, call_id, whole


class ToolCallOrder:
    """Checks that tool results answer the calls before them in their order, as templates write them without ids."""

    def __init__(self) -> None:
        self._asked: list[str] = []

    def asked(self, call_ids: list[str]) -> None:
        """An assistant's turn with these calls."""
        self._asked = call_ids

    def answered(self, call_id: str | None, where: str) -> None:
        """A result for a call. Raises `RequestRefused` when it answers no call that is still open, or one out of order."""
        if call_id is None:
            return
        if call_id not in self._asked:
            raise InvalidRequestError(
                "the result answers no call of the assistant's turn before it, or not in the order of the calls",
                param=where,
            )
        self._asked = self._asked[self._asked.index(call_id) + 1 :]
