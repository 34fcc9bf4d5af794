"""OpenAI chat completions API: requests, responses and streams. Used by `recorder.server`.

A field is supported exactly or rejected by name, never ignored. `model` is only a label, because a recorder serves one
policy. Optional features (stop texts, top log-probs, constrained replies) are rejected if the engine lacks them.
`structured_outputs` and `return_token_ids` are vLLM's parameters. A stream starts after its call is on disk, so all its
deltas are sent at once.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from deskhand.recorder.apis import validation
from deskhand.recorder.apis.validation import (
    ApiContext,
    in_range,
    invalid,
    read_field,
    read_parts,
    reject_unknown_fields,
    unsupported,
)
from deskhand.recorder.graph import Call
from deskhand.recorder.images import ImageStore
from deskhand.recorder.messages import ImagePart, Message, Part, ToolCall, message
from deskhand.recorder.recorder import ChatRequest, Reply
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.reply_parser import ParsedReply
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Grammar

MAX_REPLIES, MAX_ALTERNATIVES, MAX_STOPS = 64, 20, 16
PIECE = 24
"""Characters per delta of a stream."""
IGNORED_IF_DEFAULT: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "store": (False,),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
"""Parameters accepted only with these values (or null), which have no effect."""
SUPPORTED_FIELDS = (
    *("model", "messages", "stream", "stream_options", "n", "logprobs", "top_logprobs"),
    *("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens"),
    *("tools", "tool_choice", "response_format", "structured_outputs", "return_token_ids"),
)


@dataclass(frozen=True)
class ChatBody:
    """A request read from its JSON body."""

    request: ChatRequest
    logprobs: bool
    token_ids: bool
    stream: bool
    stream_usage: bool


def read_request(body: Mapping[str, Any], context: ApiContext) -> ChatBody:
    """Parse a body and prepare its images. Blocking; raises `InvalidRequestError` with the parameter."""
    reject_unknown_fields(body, SUPPORTED_FIELDS, IGNORED_IF_DEFAULT)
    stream = read_field(body, "stream", bool, False)
    options = body.get("stream_options")
    if options is not None and (not stream or not isinstance(options, Mapping) or set(options) - {"include_usage"}):
        raise invalid("stream_options", "stream_options supports only include_usage, and only with stream")
    names = ("max_completion_tokens", "max_tokens")
    limits = {limit for name in names if (limit := read_field(body, name, int, None)) is not None}
    if len(limits) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ; set one")
    tools, must = validation.apply_tool_choice(
        body.get("tool_choice"), validation.read_tools(body, _read_tool), _chosen_function
    )
    stop_ids, stop_texts = read_stops(body.get("stop"), "stop", context)
    logprobs = read_field(body, "logprobs", bool, False)
    alternatives = in_range(read_field(body, "top_logprobs", int, 0), 0, MAX_ALTERNATIVES, "top_logprobs")
    if alternatives:
        if not logprobs:
            raise invalid("top_logprobs", "top_logprobs requires logprobs")
        validation.require_feature("top_logprobs", context.features, "top_logprobs")
    seed = read_field(body, "seed", int, None)
    sampling = validation.read_sampling(
        body,
        max(limits, default=context.default_max_tokens),
        "max_tokens",
        seed=seed and in_range(seed, -(2**63), 2**63 - 1, "seed"),
        stop_ids=stop_ids,
        stop_texts=stop_texts,
        grammar=_read_grammar(body, context) or tool_call_grammar(must, context),
        top_logprobs=alternatives,
    )
    count = in_range(read_field(body, "n", int, 1), 1, MAX_REPLIES, "n")
    request = ChatRequest(read_messages(body.get("messages"), context.images), sampling, count, tools)
    return ChatBody(
        request,
        logprobs,
        read_field(body, "return_token_ids", bool, False),
        stream,
        bool(options and options.get("include_usage")),
    )


def read_stops(stop: Any, name: str, context: ApiContext) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return (stop ids, stop texts); a text that is one special token becomes an id."""
    ids, texts = [], []
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise invalid(name, f"{name} must be a string or a list of at most {MAX_STOPS} strings")
    for text in stops:
        if not isinstance(text, str) or not text:
            raise invalid(name, f"{name} must be a non-empty string or a list of such strings")
        token_id = context.renderer.special_id(text)
        if token_id is not None:
            ids.append(token_id)
            continue
        if "stop_texts" not in context.features:
            raise unsupported(name, f"{text[:40]!r} is not a special token of the model; cut the text in the agent")
        texts.append(validation.check_encodable(text, name))
    return tuple(ids), tuple(texts)


def _chosen_function(choice: Mapping[str, Any]) -> Any:
    function = choice.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _read_tool(tool: Any, where: str) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping) or set(tool) - {"type", "function"}:
        raise unsupported(where, 'a tool must be {"type": "function", "function": {"name": ...}}')
    where = f"{where}.function"
    reject_unknown_fields(function, ("name", "description", "parameters"), {"strict": (False,)}, f"{where}.")
    return validation.tool_definition(
        function.get("name"), function.get("description"), function.get("parameters"), where
    )


def tool_call_grammar(names: list[str], context: ApiContext) -> Grammar | None:
    """Return the grammar of replies that call one of the named tools; None without names."""
    if not names:
        return None
    validation.require_feature("regex", context.features, "tool_choice")
    renderer = context.renderer
    if renderer.tools.format is None:
        raise InvalidRequestError(
            "the checkpoint's chat template has no known format of tool calls", param="tools", code="template"
        )
    thinking = r"[\s\S]*</think>\s*" if renderer.opens_thinking else ""
    return Grammar("regex", thinking + renderer.tools.format.call_regex(names))


def _read_grammar(body: Mapping[str, Any], context: ApiContext) -> Grammar | None:
    form, outputs = body.get("response_format"), body.get("structured_outputs")
    if form is not None and form != {"type": "text"}:
        if outputs is not None:
            raise invalid("structured_outputs", "response_format and structured_outputs are mutually exclusive")
        grammar = _read_response_format(form, context.features)
    elif outputs is not None:
        grammar = _read_structured_outputs(outputs, context.features)
    else:
        return None
    param = "structured_outputs" if form is None else "response_format"
    if body.get("tools") and body.get("tool_choice") != "none":
        raise unsupported(param, "a constrained reply cannot call tools; omit tools")
    if context.renderer.opens_thinking:
        raise unsupported(param, "the checkpoint thinks first, and a constrained reply cannot contain thinking")
    return grammar


def _read_response_format(form: Any, features: Collection[str]) -> Grammar:
    kind = form.get("type") if isinstance(form, Mapping) else None
    if kind == "json_object" and set(form) == {"type"}:
        return validation.schema_grammar({"type": "object"}, features, "response_format")
    named = form.get("json_schema") if kind == "json_schema" and not set(form) - {"type", "json_schema"} else None
    if not isinstance(named, Mapping) or set(named) - {"name", "description", "schema", "strict"}:
        raise unsupported(
            "response_format", 'it must be {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}'
        )
    return validation.schema_grammar(named.get("schema"), features, "response_format")


def _read_structured_outputs(outputs: Any, features: Collection[str]) -> Grammar:
    kind = next(iter(outputs)) if isinstance(outputs, Mapping) and len(outputs) == 1 else None
    where = f"structured_outputs.{kind}"
    if kind == "regex":
        return validation.regex_grammar(outputs["regex"], features, where)
    if kind == "json":
        return validation.schema_grammar(outputs["json"], features, where)
    if kind == "choice" and all(isinstance(choice, str) for choice in validation.as_list(outputs["choice"], where)):
        return validation.regex_grammar("|".join(re.escape(choice) for choice in outputs["choice"]), features, where)
    raise unsupported("structured_outputs", "it must have one of regex, json and choice")


def read_messages(messages: Any, images: ImageStore) -> tuple[Message, ...]:
    """Return the messages of a body. Raises `InvalidRequestError`."""
    order = validation.ToolCallOrder()
    return tuple(
        _read_message(one, images, f"messages[{index}]", order)
        for index, one in enumerate(validation.as_list(messages, "messages"))
    )


def _read_message(one: Any, images: ImageStore, where: str, order: validation.ToolCallOrder) -> Message:
    if not isinstance(one, Mapping) or one.get("role") not in ("system", "user", "assistant", "tool"):
        raise invalid(f"{where}.role", "a message must have the role system, user, assistant or tool")
    role, calls = one["role"], tuple[ToolCall, ...]()
    for name, value in one.items():
        known = {"tool": ("tool_call_id",), "assistant": ("tool_calls", "reasoning_content", "reasoning")}.get(role, ())
        if name not in ("role", "content", *known) and value is not None and value != []:
            raise unsupported(f"{where}.{name}", "remove it from the message")
    if role == "assistant":
        calls, call_ids = _read_calls(one.get("tool_calls") or [], f"{where}.tool_calls")
        order.expect(call_ids)
    elif role == "tool":
        order.check_result(read_field(one, "tool_call_id", str, None, f"{where}."), f"{where}.tool_call_id")
    content = one.get("content")
    if content is None and calls:
        content = ""
    return message(role, read_parts(content, f"{where}.content", partial(_read_part, images)), calls)


def _read_calls(calls: Any, where: str) -> tuple[tuple[ToolCall, ...], list[str]]:
    if not isinstance(calls, list):
        raise invalid(where, "tool_calls must be a list")
    found, call_ids = [], []
    for index, call in enumerate(calls):
        at = f"{where}[{index}]"
        function = (
            call.get("function") if isinstance(call, Mapping) and call.get("type", "function") == "function" else None
        )
        if not isinstance(function, Mapping):
            raise invalid(at, 'a tool call must be {"id": ..., "type": "function", "function": {...}}')
        found.append(validation.tool_call(function.get("name"), function.get("arguments"), f"{at}.function"))
        call_ids.append(read_field(call, "id", str, "", f"{at}."))
    return tuple(found), call_ids


def _read_part(images: ImageStore, part: Any, where: str) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str) and not set(part) - {"type", "text"}:
        return validation.check_encodable(part["text"], where)
    image = part.get("image_url") if kind == "image_url" and not set(part) - {"type", "image_url"} else None
    if not isinstance(image, Mapping) or not isinstance(image.get("url"), str) or set(image) - {"url", "detail"}:
        raise invalid(
            where,
            'a part must be {"type": "text", "text": ...} or '
            '{"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}',
        )
    return read_image(image["url"], image.get("detail"), images, where, f"{where}.image_url.url")


def read_image(url: str, detail: Any, images: ImageStore, where: str, url_where: str) -> ImagePart:
    """Prepare an image from a data URI."""
    if detail not in (None, "auto", "high"):
        raise unsupported(f"{where}.detail", f"{repr(detail)[:40]}; images keep their size")
    return ImagePart(images.add_data_uri(url, param=url_where).sha256)


def reply_body(reply: Reply, body: ChatBody, context: ApiContext) -> dict[str, Any]:
    """Return the `chat.completion` object. `system_fingerprint` is the weights version of the first token."""
    choices = [
        {
            "index": index,
            "message": _message(call, parsed),
            "finish_reason": _finish_reason(call, parsed),
            "logprobs": _logprobs(call, context.renderer) if body.logprobs else None,
            **({"token_ids": list(call.completion.token_ids)} if body.token_ids else {}),
        }
        for index, (call, parsed) in enumerate(zip(reply.calls, reply.parsed, strict=True))
    ]
    prompt = {"prompt_token_ids": list(reply.calls[0].prompt_ids)} if body.token_ids else {}
    return {
        **_head(reply, context.model),
        "object": "chat.completion",
        "choices": choices,
        "usage": usage(reply),
        **prompt,
    }


def stream_events(reply: Reply, body: ChatBody, context: ApiContext) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    head = {**_head(reply, context.model), "object": "chat.completion.chunk"}
    counted = {"usage": None} if body.stream_usage else {}

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None, **more}
        return _event({**head, **counted, "choices": [choice]})

    for index, (call, parsed) in enumerate(zip(reply.calls, reply.parsed, strict=True)):
        first: dict[str, Any] = {"logprobs": _logprobs(call, context.renderer)} if body.logprobs else {}
        if body.token_ids:
            first["token_ids"] = list(call.completion.token_ids)
            head["prompt_token_ids"] = list(call.prompt_ids)
        yield chunk(index, {"role": "assistant", "content": ""}, **first)
        head.pop("prompt_token_ids", None)
        for piece in pieces(parsed.thinking or ""):
            yield chunk(index, {"reasoning_content": piece})
        for piece in pieces(parsed.text):
            yield chunk(index, {"content": piece})
        for number, tool_call in enumerate(_tool_calls(call, parsed)):
            yield chunk(index, {"tool_calls": [{"index": number, **tool_call}]})
        yield chunk(index, {}, _finish_reason(call, parsed))
    if body.stream_usage:
        yield _event({**head, "choices": [], "usage": usage(reply)})
    yield "data: [DONE]\n\n"


def pieces(text: str) -> Iterator[str]:
    """Split a text into pieces of `PIECE` characters."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def usage(reply: Reply) -> dict[str, int]:
    """Return the token counts of the prompt and of all its replies."""
    sampled = sum(len(call.completion.token_ids) for call in reply.calls)
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": reply.prompt_tokens + sampled,
    }


def _message(call: Call, parsed: ParsedReply) -> dict[str, Any]:
    result: dict[str, Any] = {"role": "assistant", "content": parsed.text if parsed.text or not parsed.calls else None}
    if parsed.thinking is not None:
        result["reasoning_content"] = parsed.thinking
    if parsed.calls:
        result["tool_calls"] = _tool_calls(call, parsed)
    return result


def _tool_calls(call: Call, parsed: ParsedReply) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{call.id}_{number}",
            "type": "function",
            "function": {"name": one.name, "arguments": one.arguments},
        }
        for number, one in enumerate(parsed.calls)
    ]


def _finish_reason(call: Call, parsed: ParsedReply) -> str:
    return "tool_calls" if parsed.calls and call.completion.finish_reason == "stop" else call.completion.finish_reason


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _head(reply: Reply, model: str) -> dict[str, Any]:
    version = reply.calls[0].completion.versions[0]
    return {"id": reply.id, "created": int(time.time()), "model": model, "system_fingerprint": f"version-{version}"}


def _logprobs(call: Call, renderer: ChatRenderer) -> dict[str, Any]:
    done = call.completion
    entries = [
        _entry(renderer, token_id, logprob) for token_id, logprob in zip(done.token_ids, done.logprobs, strict=True)
    ]
    for entry, listed in zip(entries, done.top_logprobs or [()] * len(entries), strict=True):
        entry["top_logprobs"] = [_entry(renderer, token_id, logprob) for token_id, logprob in listed]
    return {"content": entries, "refusal": None}


def _entry(renderer: ChatRenderer, token_id: int, logprob: float) -> dict[str, Any]:
    text = renderer.token_text(token_id)
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
