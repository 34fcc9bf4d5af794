"""Validation of request bodies, shared by the three APIs. Each check raises `InvalidRequestError` with the parameter.

Invariant: every field of a body is read, has a value without effect, or is rejected by its path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.recorder.images import ImageStore
from deskhand.recorder.messages import Message, Part, ToolCall
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Feature, Grammar, Sampling

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MAX_TOOLS = 128
Tool = Mapping[str, Any]
"""A tool definition in the chat completions format."""


def invalid(where: str, message: str) -> InvalidRequestError:
    """Return the error for the value at the path `where`."""
    return InvalidRequestError(message, param=where)


def unsupported(name: str, reason: str = "") -> InvalidRequestError:
    """Return the error for an unsupported parameter."""
    return InvalidRequestError(
        f"{name} is not supported{': ' + reason if reason else ' by this endpoint; omit it'}",
        param=name,
        code="unsupported_parameter",
    )


def reject_unknown_fields(
    body: Mapping[str, Any], supported: Collection[str], neutral: Mapping[str, tuple[Any, ...]], where: str = ""
) -> None:
    """Reject fields that are neither supported nor null nor have a neutral value."""
    for name, value in body.items():
        if name in supported or value is None:
            continue
        if name not in neutral:
            raise unsupported(where + name)
        if not any(type(value) is type(one) and value == one for one in neutral[name]):
            raise unsupported(where + name, f"{repr(value)[:80]}; omit it")


def read_field(body: Mapping[str, Any], name: str, kind: type, default: Any, where: str = "") -> Any:
    """Return a field after checking its type; integers are accepted for float."""
    value = body.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise invalid(where + name, f"{where}{name} must be a {kind.__name__}, got {repr(value)[:80]}")
    if isinstance(value, str):
        return check_encodable(value, where + name)
    return value


def in_range(value: Any, low: float, high: float, name: str) -> Any:
    """Check that a number is in a closed range and return it."""
    if not low <= value <= high:
        raise invalid(name, f"{name} must be in {low:g}..{high:g}, got {value}")
    return value


def read_sampling(body: Mapping[str, Any], max_tokens: int | None, limit_name: str, **more: Any) -> Sampling:
    """Return the sampling parameters; those of one API alone are in `more`. None: `max_tokens` is required."""
    if max_tokens is None:
        raise invalid(limit_name, f"{limit_name} is required")
    return Sampling(
        max_tokens=in_range(max_tokens, 1, math.inf, limit_name),
        temperature=float(in_range(read_field(body, "temperature", float, 1.0), 0, 2, "temperature")),
        top_p=float(in_range(read_field(body, "top_p", float, 1.0), 1e-6, 1, "top_p")),
        **more,
    )


def check_encodable(text: str, where: str) -> str:
    """Check that a text can be encoded as UTF-8 and return it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(where, "the text contains an unpaired surrogate") from None
    return text


def as_list(value: Any, where: str) -> list[Any]:
    """Check that a value is a non-empty list and return it."""
    if not isinstance(value, list) or not value:
        raise invalid(where, f"{where} must be a non-empty list")
    return value


def read_parts(content: Any, where: str, read_part: Callable[[Any, str], Part]) -> list[Part]:
    """Return the parts of a content that is a string or a list; `read_part(part, path)` reads one of the list."""
    if isinstance(content, str):
        return [check_encodable(content, where)]
    if not isinstance(content, list):
        raise invalid(where, f"{where} must be a string or a list of parts")
    return [read_part(part, f"{where}[{index}]") for index, part in enumerate(content)]


def require_feature(feature: Feature, features: Collection[str], name: str) -> None:
    """Reject a parameter that requires a missing engine feature."""
    if feature not in features:
        raise unsupported(name, f"the engine has no {feature} feature")


def schema_grammar(schema: Any, features: Collection[str], where: str) -> Grammar:
    """Return the grammar of a JSON Schema."""
    if not isinstance(schema, Mapping):
        raise invalid(where, f"{where} must be a JSON Schema object")
    require_feature("json_schema", features, where)
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False))


def regex_grammar(pattern: Any, features: Collection[str], where: str) -> Grammar:
    """Return the grammar of a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, TypeError, RecursionError, OverflowError) as error:
        raise invalid(where, f"{where} is not a valid regular expression: {error}") from None
    require_feature("regex", features, where)
    return Grammar("regex", pattern)


def read_tools(body: Mapping[str, Any], read_tool: Callable[[Any, str], Tool]) -> tuple[Tool, ...]:
    """Return the tools of a body, each read by `read_tool(tool, path)`."""
    tools = body.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise invalid("tools", f"tools must be a list of at most {MAX_TOOLS} tools")
    return tuple(read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))


def tool_names(tools: tuple[Tool, ...]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def apply_tool_choice(
    choice: Any, tools: tuple[Tool, ...], name_of: Callable[[Mapping[str, Any]], Any]
) -> tuple[tuple[Tool, ...], list[str]]:
    """Return (offered tools, names of those of which one must be called) for OpenAI's `tool_choice`. `name_of` returns
    the name in a choice of one function."""
    if choice in (None, "auto", "none"):
        return (() if choice == "none" else tools), []
    names = tool_names(tools)
    if choice == "required" and tools:
        return tools, names
    if isinstance(choice, Mapping) and choice.get("type") == "function" and name_of(choice) in names:
        return tools, [name_of(choice)]
    raise invalid("tool_choice", 'tool_choice must be "auto", "none", "required" or one of the tools')


def tool_definition(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """Return a tool definition in the chat completions format, as chat templates expect it."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{where}.name", "a tool's name must be 1 to 64 letters, digits, dots, dashes or underscores")
    if description is not None and not isinstance(description, str):
        raise invalid(f"{where}.description", "a tool's description must be a string")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise invalid(f"{where}.parameters", "a tool's parameters must be a JSON Schema object")
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = check_encodable(description, f"{where}.description")
    if parameters is not None:
        check_encodable(json.dumps(parameters, ensure_ascii=False), f"{where}.parameters")
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_call(name: Any, arguments: Any, where: str) -> ToolCall:
    """Return a call of an assistant turn. `arguments` is an object, or an object as JSON text."""
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise invalid(f"{where}.name", "a tool call must have the name of a tool")
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, Mapping):
        raise invalid(f"{where}.arguments", "a tool call's arguments must be a JSON object")
    return ToolCall(
        name, check_encodable(arguments if isinstance(arguments, str) else json.dumps(found, ensure_ascii=False), where)
    )


@dataclass(frozen=True)
class ApiContext:
    """What the requests of a session are read with."""

    renderer: ChatRenderer
    images: ImageStore
    model: str
    default_max_tokens: int
    features: Collection[str]
    """Features of the engine."""
    conversations: Mapping[str, tuple[Message, ...]]
    """Conversations of the session's stored responses, including their replies, by response id."""


class ToolCallOrder:
    """Checks that tool results follow the order of their calls, because templates write them without ids."""

    def __init__(self) -> None:
        self._open: list[str] = []

    def expect(self, call_ids: list[str]) -> None:
        """Set the calls of an assistant turn."""
        self._open = call_ids

    def check_result(self, call_id: str | None, where: str) -> None:
        """Check a result. Raises `InvalidRequestError` if its call is unknown, answered or out of order."""
        if call_id is None:
            return
        if call_id not in self._open:
            raise invalid(
                where, "tool results must refer to calls of the preceding assistant turn, in the order of the calls"
            )
        self._open = self._open[self._open.index(call_id) + 1 :]
