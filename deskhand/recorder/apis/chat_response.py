"""OpenAI chat completions API: responses and streams. Used by `recorder.server`.

A stream starts after its call is on disk, so all its deltas are sent at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from deskhand.recorder.apis.chat import ChatBody
from deskhand.recorder.graph import Call
from deskhand.recorder.recorder import Reply
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.reply_parser import ParsedReply

PIECE = 24
"""Characters per delta of a stream."""


def reply_body(reply: Reply, body: ChatBody, renderer: ChatRenderer, model: str) -> dict[str, Any]:
    """Return the `chat.completion` object. `system_fingerprint` is the weights version of the first token."""
    choices = [
        {
            "index": index,
            "message": _message(call, parsed),
            "finish_reason": _finish_reason(call, parsed),
            "logprobs": _logprobs(call, renderer) if body.logprobs else None,
            **({"token_ids": list(call.completion.token_ids)} if body.token_ids else {}),
        }
        for index, (call, parsed) in enumerate(zip(reply.calls, reply.parsed, strict=True))
    ]
    prompt = {"prompt_token_ids": list(reply.calls[0].prompt_ids)} if body.token_ids else {}
    return {**_head(reply, model), "object": "chat.completion", "choices": choices, "usage": usage(reply), **prompt}


def stream_chunks(reply: Reply, body: ChatBody, renderer: ChatRenderer, model: str) -> Iterator[str]:
    """Yield the reply as server-sent events."""
    head = {**_head(reply, model), "object": "chat.completion.chunk"}
    counted = {"usage": None} if body.stream_usage else {}

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None, **more}
        return _event({**head, **counted, "choices": [choice]})

    for index, (call, parsed) in enumerate(zip(reply.calls, reply.parsed, strict=True)):
        first: dict[str, Any] = {"logprobs": _logprobs(call, renderer)} if body.logprobs else {}
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
