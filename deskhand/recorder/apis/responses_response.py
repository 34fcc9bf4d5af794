"""OpenAI responses API: responses and streams. Used by `recorder.server`.

The response's id is the call's. Reasoning tokens are not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from deskhand.recorder.apis.chat_response import pieces, usage
from deskhand.recorder.apis.responses import ResponsesBody, call_id_of
from deskhand.recorder.recorder import Reply


def reply_body(reply: Reply, body: ResponsesBody, model: str) -> dict[str, Any]:
    """Return the `response` object."""
    whole = reply.calls[0].completion.finish_reason == "stop"
    counted = usage(reply)
    return {
        "id": reply.id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed" if whole else "incomplete",
        "error": None,
        "incomplete_details": None if whole else {"reason": "max_output_tokens"},
        "model": model,
        "output": _items(reply, "completed" if whole else "incomplete"),
        "parallel_tool_calls": True,
        "store": body.store,
        "truncation": "disabled",
        "usage": {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0} if reply.parsed[0].thinking is None else None,
            "total_tokens": counted["total_tokens"],
        },
        **body.echo,
    }


def _items(reply: Reply, status: str) -> list[dict[str, Any]]:
    call, parsed = reply.calls[0], reply.parsed[0]
    items: list[dict[str, Any]] = []
    if parsed.thinking is not None:
        thought = [{"type": "reasoning_text", "text": parsed.thinking}]
        items.append({"id": f"rs_{call.id}", "type": "reasoning", "summary": [], "content": thought, "status": status})
    if parsed.text or not (parsed.calls or items):
        text = {"type": "output_text", "text": parsed.text, "annotations": []}
        items.append(
            {"id": f"msg_{call.id}", "type": "message", "role": "assistant", "status": status, "content": [text]}
        )
    for number, one in enumerate(parsed.calls):
        items.append(
            {
                "id": f"fc_{call.id}_{number}",
                "type": "function_call",
                "call_id": call_id_of(call.id, number),
                "name": one.name,
                "arguments": one.arguments,
                "status": status,
            }
        )
    return items


def stream_events(reply: Reply, body: ResponsesBody, model: str) -> Iterator[str]:
    """Yield the reply as OpenAI's typed server-sent events."""
    for number, (kind, data) in enumerate(_events(reply_body(reply, body, model))):
        line = json.dumps({"type": kind, "sequence_number": number, **data}, ensure_ascii=False, separators=(",", ":"))
        yield f"event: {kind}\ndata: {line}\n\n"


def _events(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    started = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress"}
        empty |= {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        yield "response.output_item.added", {"output_index": index, "item": empty}
        if item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {**at, "delta": piece}
            yield "response.function_call_arguments.done", {**at, "arguments": item["arguments"], "name": item["name"]}
        else:
            yield from _part_events(item["content"][0], {**at, "content_index": 0})
        yield "response.output_item.done", {"output_index": index, "item": item}
    yield f"response.{whole['status']}", {"response": whole}


def _part_events(part: dict[str, Any], at: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = part["type"]
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    more = {"logprobs": []} if kind == "output_text" else {}
    for piece in pieces(part["text"]):
        yield f"response.{kind}.delta", {**at, **more, "delta": piece}
    yield f"response.{kind}.done", {**at, **more, "text": part["text"]}
    yield "response.content_part.done", {**at, "part": part}
