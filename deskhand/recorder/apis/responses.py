"""OpenAI responses API: request parsing. Used by `recorder.server`; responses are in `responses_response`.

As with chat completions, a field is supported exactly or rejected by name. An assistant message and the function calls
after it become one message. Reasoning items in the history are accepted and ignored. `previous_response_id` is a call
of the same session; its conversation, without instructions, precedes the input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.recorder.apis import validation
from deskhand.recorder.apis.chat import read_image, tool_call_grammar
from deskhand.recorder.apis.validation import in_range, read_field, reject_unknown_fields, unsupported
from deskhand.recorder.images import ImageStore
from deskhand.recorder.messages import Message, Part, Role, ToolCall, message
from deskhand.recorder.recorder import ChatRequest
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Grammar, Sampling

SUPPORTED_FIELDS = (
    *("model", "input", "instructions", "previous_response_id", "store", "stream", "metadata", "user"),
    *("max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "text"),
)
IGNORED_IF_DEFAULT: dict[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "truncation": ("disabled",),
    "background": (False,),
    "include": ([],),
    "service_tier": ("auto", "default"),
    "top_logprobs": (0,),
}
Earlier = Callable[[str], tuple[Message, ...] | None]
"""Returns the conversation of a stored response, including its reply, by id."""
_ITEM = ("type", "id", "status")


@dataclass(frozen=True)
class ResponsesBody:
    """A request read from its JSON body. `conversation` excludes the instructions."""

    request: ChatRequest
    conversation: tuple[Message, ...]
    stream: bool
    store: bool
    echo: Mapping[str, Any]
    """Fields repeated in the response."""


def read_request(
    body: Mapping[str, Any],
    renderer: ChatRenderer,
    images: ImageStore,
    default_max_tokens: int,
    features: Collection[str],
    earlier: Earlier,
) -> ResponsesBody:
    """Parse a body and prepare its images. Blocking; raises `InvalidRequestError` with the parameter."""
    if not isinstance(body, Mapping):
        raise InvalidRequestError("the body must be a JSON object")
    reject_unknown_fields(body, SUPPORTED_FIELDS, IGNORED_IF_DEFAULT)
    tools, must = _read_tools(body)
    grammar = _read_grammar(body, features)
    if grammar is not None and (tools or renderer.opens_thinking):
        raise unsupported("text.format", "a constrained reply can neither call tools nor think")
    limit = read_field(body, "max_output_tokens", int, None)
    sampling = Sampling(
        max_tokens=default_max_tokens if limit is None else validation.max_tokens_of(limit, "max_output_tokens"),
        temperature=float(in_range(read_field(body, "temperature", float, 1.0), 0, 2, "temperature")),
        top_p=float(in_range(read_field(body, "top_p", float, 1.0), 1e-6, 1, "top_p")),
        grammar=grammar or tool_call_grammar(must, renderer, features),
    )
    before = _earlier(body, earlier)
    call_ids = (
        [call_id_of(body["previous_response_id"], number) for number in range(len(before[-1].calls))] if before else []
    )
    conversation = before + read_input(body.get("input"), images, call_ids)
    instructions = read_field(body, "instructions", str, None)
    system = () if instructions is None else (message("system", instructions),)
    echo = {name: body.get(name) for name in ("instructions", "metadata", "previous_response_id", "max_output_tokens")}
    echo |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "tools": body.get("tools") or []}
    echo |= {"tool_choice": body.get("tool_choice") or "auto", "text": body.get("text") or {"format": {"type": "text"}}}
    validation.check_encodable(json.dumps(echo, ensure_ascii=False), "metadata")
    request = ChatRequest(system + conversation, sampling, 1, tools)
    return ResponsesBody(
        request, conversation, read_field(body, "stream", bool, False), read_field(body, "store", bool, True), echo
    )


def _earlier(body: Mapping[str, Any], earlier: Earlier) -> tuple[Message, ...]:
    name = read_field(body, "previous_response_id", str, None)
    found = () if name is None else earlier(name)
    if found is None:
        raise InvalidRequestError(
            "the session has no stored response with that id", param="previous_response_id", status=404
        )
    return found


def _read_tools(body: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """Return (tools, names of the tools of which one must be called)."""
    definitions = body.get("tools") or []
    if not isinstance(definitions, list) or len(definitions) > validation.MAX_TOOLS:
        raise InvalidRequestError(f"tools must be a list of at most {validation.MAX_TOOLS} tools", param="tools")
    tools = []
    for index, tool in enumerate(definitions):
        where = f"tools[{index}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise unsupported(where, "tools must have type function")
        reject_unknown_fields(tool, ("type", "name", "description", "parameters"), {"strict": (False,)}, f"{where}.")
        tools.append(
            validation.tool_definition(tool.get("name"), tool.get("description"), tool.get("parameters"), where)
        )
    names = [tool["function"]["name"] for tool in tools]
    choice = body.get("tool_choice")
    if choice in (None, "auto"):
        return tuple(tools), []
    if choice == "none":
        return (), []
    if choice == "required" and tools:
        return tuple(tools), names
    if isinstance(choice, Mapping) and choice.get("type") == "function" and choice.get("name") in names:
        return tuple(tools), [choice["name"]]
    raise InvalidRequestError('tool_choice must be "auto", "none", "required" or one of the tools', param="tool_choice")


def _read_grammar(body: Mapping[str, Any], features: Collection[str]) -> Grammar | None:
    text = body.get("text")
    if text is None:
        return None
    if not isinstance(text, Mapping):
        raise InvalidRequestError('text must be {"format": {...}}', param="text")
    reject_unknown_fields(text, ("format",), {}, "text.")
    form = text.get("format")
    if form is None or form == {"type": "text"}:
        return None
    if not isinstance(form, Mapping):
        raise InvalidRequestError("text.format must be an object", param="text.format")
    kind = form.get("type")
    if kind == "json_object":
        return validation.schema_grammar({"type": "object"}, features, "text.format")
    if kind == "json_schema" and not set(form) - {"type", "name", "description", "schema", "strict"}:
        return validation.schema_grammar(form.get("schema"), features, "text.format")
    raise unsupported("text.format", "its type must be text, json_object, or json_schema with a schema")


class _Turns:
    """Collects items into messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.order = validation.ToolCallOrder()
        self._parts: list[Part] | None = None
        self._calls: list[ToolCall] = []
        self._call_ids: list[str] = []

    def assistant(self, parts: list[Part]) -> None:
        """Start an assistant turn with a message."""
        self.close()
        self._parts = parts

    def call(self, call: ToolCall, call_id: str) -> None:
        """Add a call to the open assistant turn, or start one."""
        self._parts = self._parts or []
        self._calls.append(call)
        self._call_ids.append(call_id)

    def other(self, one: Message) -> None:
        self.close()
        self.messages.append(one)

    def close(self) -> None:
        """Complete the open assistant turn, if any."""
        if self._parts is not None:
            self.messages.append(message("assistant", self._parts, tuple(self._calls)))
            self.order.expect(self._call_ids)
            self._parts, self._calls, self._call_ids = None, [], []


def call_id_of(response_id: str, number: int) -> str:
    """Return the id of a function call of a response."""
    return f"call_{response_id}_{number}"


def read_input(items: Any, images: ImageStore, call_ids: list[str] | None = None) -> tuple[Message, ...]:
    """Return the messages of an input; `call_ids` are open calls before it. Raises `InvalidRequestError`."""
    if isinstance(items, str):
        return (message("user", validation.check_encodable(items, "input")),)
    turns = _Turns()
    turns.order.expect(call_ids or [])
    for index, item in enumerate(validation.as_list(items, "input")):
        where = f"input[{index}]"
        if not isinstance(item, Mapping):
            raise InvalidRequestError("an item of input must be an object", param=where)
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            _read_message(item, images, where, turns)
        elif kind == "function_call":
            reject_unknown_fields(item, ("call_id", "name", "arguments", *_ITEM), {}, f"{where}.")
            call = validation.tool_call(item.get("name"), item.get("arguments"), where)
            turns.call(call, read_field(item, "call_id", str, "", f"{where}."))
        elif kind == "function_call_output":
            reject_unknown_fields(item, ("call_id", "output", *_ITEM), {}, f"{where}.")
            turns.close()
            turns.order.check_result(read_field(item, "call_id", str, "", f"{where}."), f"{where}.call_id")
            turns.other(message("tool", _read_parts(item.get("output"), images, f"{where}.output")))
        elif kind != "reasoning":
            raise unsupported(where, f"items of type {str(kind)[:40]!r} are not supported")
    turns.close()
    return tuple(turns.messages)


def _read_message(item: Mapping[str, Any], images: ImageStore, where: str, turns: _Turns) -> None:
    reject_unknown_fields(item, ("role", "content", *_ITEM), {"phase": ()}, f"{where}.")
    role = item.get("role")
    roles: dict[Any, Role] = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
    if not isinstance(role, str) or role not in roles:
        raise InvalidRequestError("role must be user, assistant, system or developer", param=f"{where}.role")
    parts = _read_parts(item.get("content"), images, f"{where}.content")
    if role == "assistant":
        turns.assistant(parts)
    else:
        turns.other(message(roles[role], parts))


def _read_parts(content: Any, images: ImageStore, where: str) -> list[Part]:
    if isinstance(content, str):
        return [validation.check_encodable(content, where)]
    if not isinstance(content, list):
        raise InvalidRequestError("content must be a string or a list of parts", param=where)
    return [_read_part(part, images, f"{where}[{index}]") for index, part in enumerate(content)]


def _read_part(part: Any, images: ImageStore, where: str) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text") and isinstance(part.get("text"), str):
        reject_unknown_fields(part, ("type", "text"), {"annotations": ([],), "logprobs": ([],)}, f"{where}.")
        return validation.check_encodable(part["text"], where)
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        reject_unknown_fields(part, ("type", "image_url", "detail"), {}, f"{where}.")
        return read_image(part["image_url"], part.get("detail"), images, where, f"{where}.image_url")
    raise unsupported(where, f"parts of type {str(kind)[:40]!r} are not supported here")
