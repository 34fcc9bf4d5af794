"""OpenAI chat completions, out. Invariant: what leaves is what was recorded: the deltas of a stream join to the reply, and the
log-probs are those of the recorded tokens.

A stream begins when its call is on disk, so its deltas (of a few characters each) come together.
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
"""Characters of a delta of a stream."""


def reply_body(reply: Reply, body: ChatBody, renderer: ChatRenderer, model: str) -> dict[str, Any]:
    """The `chat.completion` object. `system_fingerprint` is the version of the weights that sampled the first token."""
    choices = [
        {
            "index": index,
            "message": _message(call, said),
            "finish_reason": _finish_reason(call, said),
            "logprobs": _logprobs(call, renderer) if body.logprobs else None,
            **({"token_ids": list(call.completion.token_ids)} if body.token_ids else {}),
        }
        for index, (call, said) in enumerate(zip(reply.calls, reply.said, strict=True))
    ]
    prompt = {"prompt_token_ids": list(reply.calls[0].prompt_ids)} if body.token_ids else {}
    return {**_head(reply, model), "object": "chat.completion", "choices": choices, "usage": usage(reply), **prompt}


def stream_chunks(reply: Reply, body: ChatBody, renderer: ChatRenderer, model: str) -> Iterator[str]:
    """The reply as server-sent events."""
    head = {**_head(reply, model), "object": "chat.completion.chunk"}
    counted = {"usage": None} if body.stream_usage else {}

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
        choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None, **more}
        return _event({**head, **counted, "choices": [choice]})

    for index, (call, said) in enumerate(zip(reply.calls, reply.said, strict=True)):
        first: dict[str, Any] = {"logprobs": _logprobs(call, renderer)} if body.logprobs else {}
        if body.token_ids:
            first["token_ids"] = list(call.completion.token_ids)
            head["prompt_token_ids"] = list(call.prompt_ids)
        yield chunk(index, {"role": "assistant", "content": ""}, **first)
        head.pop("prompt_token_ids", None)
        for piece in pieces(said.thinking or ""):
            yield chunk(index, {"reasoning_content": piece})
        for piece in pieces(said.text):
            yield chunk(index, {"content": piece})
        for number, tool_call in enumerate(_tool_calls(call, said)):
            yield chunk(index, {"tool_calls": [{"index": number, **tool_call}]})
        yield chunk(index, {}, _finish_reason(call, said))
    if body.stream_usage:
        yield _event({**head, "choices": [], "usage": usage(reply)})
    yield "data: [DONE]\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in short pieces."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def usage(reply: Reply) -> dict[str, int]:
    """Tokens of the prompt and of all its replies."""
    sampled = sum(len(call.completion.token_ids) for call in reply.calls)
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": reply.prompt_tokens + sampled,
    }


def _message(call: Call, said: ParsedReply) -> dict[str, Any]:
    written: dict[str, Any] = {"role": "assistant", "content": said.text if said.text or not said.calls else None}
    if said.thinking is not None:
        written["reasoning_content"] = said.thinking
    if said.calls:
        written["tool_calls"] = _tool_calls(call, said)
    return written


def _tool_calls(call: Call, said: ParsedReply) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{call.id}_{number}",
            "type": "function",
            "function": {"name": one.name, "arguments": one.arguments},
        }
        for number, one in enumerate(said.calls)
    ]


def _finish_reason(call: Call, said: ParsedReply) -> str:
    return "tool_calls" if said.calls and call.completion.finish_reason == "stop" else call.completion.finish_reason


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
