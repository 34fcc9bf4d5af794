"""OpenAI chat completions, in and out. Invariant: what is not honoured exactly is refused by name, never ignored.

`read_request` turns a request body into messages and sampling, `reply_body` and `stream_chunks` a recorded reply into the response.
`model` is a label: a recorder serves one policy, and the response says which.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deskhand.engines.base import PreparedImage, Sampling
from deskhand.recorder.graph import Call
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import Message, Part, Picture, message
from deskhand.recorder.refusal import RequestRefused
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.session import ChatRequest, Reply

MAX_REPLIES = 64
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none",),
    "modalities": (["text"],),
    "store": (False,),
}
"""Parameters that are taken only with a value that changes nothing (or null)."""
HONOURED = (
    "model",
    "messages",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "logprobs",
    "seed",
    "stop",
    "stream",
)


@dataclass(frozen=True)
class ChatBody:
    """A request read from its JSON body."""

    request: ChatRequest
    logprobs: bool
    stream: bool
    stream_usage: bool


def read_request(body: Mapping[str, Any], renderer: ChatRenderer, images: ImageCache, default_max_tokens: int) -> ChatBody:
    """Read a body and prepare its images. Blocking; raises `RequestRefused` naming the parameter."""
    if not isinstance(body, Mapping):
        raise RequestRefused("the body must be a JSON object")
    for name, value in body.items():
        if name in HONOURED or name == "stream_options" or value is None:
            continue
        if name not in NEUTRAL:
            raise RequestRefused(
                f"{name} is not supported by this endpoint; leave it out", param=name, code="unsupported_parameter"
            )
        if not any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL[name]):
            raise RequestRefused(
                f"{name}={repr(value)[:80]} is not supported; leave it out", param=name, code="unsupported_parameter"
            )
    stream = _typed(body, "stream", bool, False)
    options = body.get("stream_options")
    if options is not None and (not stream or not isinstance(options, Mapping) or set(options) - {"include_usage"}):
        raise RequestRefused("stream_options takes include_usage alone, and only with stream", param="stream_options")
    limits = [_typed(body, name, int, None) for name in ("max_completion_tokens", "max_tokens")]
    given = [limit for limit in limits if limit is not None]
    if len(set(given)) > 1:
        raise RequestRefused("max_tokens and max_completion_tokens differ; give one", param="max_tokens")
    sampling = Sampling(
        max_tokens=_within(given[0], 1, math.inf, "max_tokens") if given else default_max_tokens,
        temperature=float(_within(_typed(body, "temperature", float, 1.0), 0, 2, "temperature")),
        top_p=float(_within(_typed(body, "top_p", float, 1.0), 1e-6, 1, "top_p")),
        seed=_typed(body, "seed", int, None),
        stop_ids=_stop_ids(body.get("stop"), renderer),
    )
    count = _within(_typed(body, "n", int, 1), 1, MAX_REPLIES, "n")
    request = ChatRequest(_read_messages(body.get("messages"), images), sampling, count)
    usage = bool(options and options.get("include_usage"))
    return ChatBody(request, _typed(body, "logprobs", bool, False), stream, usage)


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    allowed = (int, float) if kind is float else kind
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise RequestRefused(f"{name} must be a {kind.__name__}, not {value!r}", param=name)
    return value


def _within(value: Any, low: float, high: float, name: str) -> Any:
    if not low <= value <= high:
        raise RequestRefused(f"{name}={value} is outside {low:g}..{high:g}", param=name)
    return value


def _stop_ids(stop: Any, renderer: ChatRenderer) -> tuple[int, ...]:
    ids = []
    for text in [stop] if isinstance(stop, str) else stop or []:
        token_id = renderer.special_id(text) if isinstance(text, str) else None
        if token_id is None:
            raise RequestRefused(
                f"stop={text!r} is not one special token of the model and cannot be honoured exactly; cut the text in the agent",
                param="stop",
                code="unsupported_parameter",
            )
        ids.append(token_id)
    return tuple(ids)


def _read_messages(messages: Any, images: ImageCache) -> tuple[Message, ...]:
    if not isinstance(messages, list) or not messages:
        raise RequestRefused("messages must be a list of at least one message", param="messages")
    return tuple(_read_message(one, images, f"messages[{index}]") for index, one in enumerate(messages))


def _read_message(one: Any, images: ImageCache, where: str) -> Message:
    if not isinstance(one, Mapping) or one.get("role") not in ("system", "user", "assistant", "tool"):
        raise RequestRefused("a message must have the role system, user, assistant or tool", param=f"{where}.role")
    role = one["role"]
    for name, value in one.items():
        if name in ("role", "content") or value is None or value == [] or (name == "tool_call_id" and role == "tool"):
            continue
        raise RequestRefused(f"{name} in a message is not supported", param=f"{where}.{name}", code="unsupported_parameter")
    content = one.get("content")
    if isinstance(content, str):
        return message(role, _text(content, f"{where}.content"))
    if not isinstance(content, list):
        raise RequestRefused("content must be a string or a list of parts", param=f"{where}.content")
    return message(role, [_read_part(part, images, f"{where}.content[{index}]") for index, part in enumerate(content)])


def _text(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestRefused("the text holds half a surrogate pair, which no tokeniser takes", param=where) from None
    return text


def _read_part(part: Any, images: ImageCache, where: str) -> Part:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str) and not set(part) - {"type", "text"}:
        return _text(part["text"], where)
    image = part.get("image_url") if kind == "image_url" and not set(part) - {"type", "image_url"} else None
    if not isinstance(image, Mapping) or not isinstance(image.get("url"), str) or set(image) - {"url", "detail"}:
        raise RequestRefused(
            'a part is {"type": "text", "text": ...} or {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}',
            param=where,
        )
    if image.get("detail") not in (None, "auto", "high"):
        raise RequestRefused(
            f"detail={image['detail']!r} is not supported; images are seen as they are",
            param=f"{where}.detail",
            code="unsupported_parameter",
        )
    where = f"{where}.image_url.url"
    prepared: PreparedImage = images.add_data_uri(image["url"], param=where)
    return Picture(prepared.sha256)


def reply_body(reply: Reply, body: ChatBody, renderer: ChatRenderer, model: str) -> dict[str, Any]:
    """The `chat.completion` object. `system_fingerprint` is the version of the weights that sampled the first token."""
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": call.text},
            "finish_reason": call.completion.finish_reason,
            "logprobs": _logprobs(call, renderer) if body.logprobs else None,
        }
        for index, call in enumerate(reply.calls)
    ]
    return {**_head(reply, model), "object": "chat.completion", "choices": choices, "usage": _usage(reply)}


def stream_chunks(reply: Reply, body: ChatBody, renderer: ChatRenderer, model: str) -> Iterator[str]:
    """The reply as server-sent events: per choice one delta with the whole text and one with the finish reason."""
    head = {**_head(reply, model), "object": "chat.completion.chunk"}
    usage = {"usage": None} if body.stream_usage else {}
    for index, call in enumerate(reply.calls):
        logprobs = _logprobs(call, renderer) if body.logprobs else None
        delta = {"role": "assistant", "content": call.text}
        last = {"index": index, "delta": {}, "finish_reason": call.completion.finish_reason, "logprobs": None}
        yield _event({**head, **usage, "choices": [{"index": index, "delta": delta, "finish_reason": None, "logprobs": logprobs}]})
        yield _event({**head, **usage, "choices": [last]})
    if body.stream_usage:
        yield _event({**head, "choices": [], "usage": _usage(reply)})
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _head(reply: Reply, model: str) -> dict[str, Any]:
    version = reply.calls[0].completion.versions[0]
    return {"id": reply.id, "created": int(time.time()), "model": model, "system_fingerprint": f"version-{version}"}


def _usage(reply: Reply) -> dict[str, int]:
    sampled = sum(len(call.completion.token_ids) for call in reply.calls)
    return {"prompt_tokens": reply.prompt_tokens, "completion_tokens": sampled, "total_tokens": reply.prompt_tokens + sampled}


def _logprobs(call: Call, renderer: ChatRenderer) -> dict[str, Any]:
    entries = []
    for token_id, logprob in zip(call.completion.token_ids, call.completion.logprobs, strict=True):
        text = renderer.token_text(token_id)
        encoded = None if "\ufffd" in text else list(text.encode())
        entries.append({"token": text, "logprob": logprob, "bytes": encoded, "top_logprobs": []})
    return {"content": entries, "refusal": None}
