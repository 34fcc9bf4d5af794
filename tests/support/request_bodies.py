"""A good request for each route of the recorder's endpoint that takes one, with everything in it that a client may
send. Some of it needs an engine's features; requests without them are refused, not failed."""

from __future__ import annotations

from typing import Any

from recording import data_uri

PICTURE = data_uri(1)
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": PICTURE.partition(",")[2]}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user",
             "content": [{"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": PICTURE}}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
        ],
        "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "n": 2, "seed": 3, "stop": ["x"], "stream": True,
        "logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}, "tools": [TOOL],
        "tool_choice": "auto", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
        "structured_outputs": {"regex": "a"}, "return_token_ids": True,
    },
    "/v1/messages": {
        "model": "m", "max_tokens": 4,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "image", "source": SOURCE}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "r"}, USE]},
            {"role": "user",
             "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "temperature": 1.0, "top_p": 1.0, "stream": True,
    },
    "/v1/responses": {
        "model": "m", "instructions": "i", "max_output_tokens": 4, "previous_response_id": "s.1", "store": True,
        "stream": True,
        "input": [
            {"role": "user",
             "content": [{"type": "input_image", "image_url": PICTURE}, {"type": "input_text", "text": "t"}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "o"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}], "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}},
    },
    "/sessions": {"session_id": "other"},
    "/sessions/s/rewards": {"reward": 1.0, "call_id": "s.1", "whole": True},
    "/sessions/s/keys": {"agent": "a"},
}  # fmt: skip
