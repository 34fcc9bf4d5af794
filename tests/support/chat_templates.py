"""Chat templates that behave as those of real checkpoints do, well or badly."""

from __future__ import annotations

_PARTS = (
    "{%- if m['content'] is string %}{{- m['content'] }}{%- else %}{%- for p in m['content'] %}"
    "{%- if p['type'] == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- p['text'] }}{%- endif %}{%- endfor %}{%- endif %}"
)
_TEXTS = (
    "{%- if m['content'] is string %}{{- m['content'] }}{%- else %}{%- for p in m['content'] if p['type'] == 'text' %}"
    "{{- p['text'] }}{%- endfor %}{%- endif %}"
)
_OPEN = "{{- '<|im_start|>' + m['role'] + '\\n' }}"
_CLOSE = "{{- '<|im_end|>\\n' }}"
_ASK = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
_WRAPPED_TOOL = (
    "{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' }}PARTS{{- '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
)


def _each(body: str, ask: str = _ASK) -> str:
    return "{%- for m in messages %}" + body + "{%- endfor %}" + ask


def _by_role(role: str, special: str, otherwise: str) -> str:
    return "{%- if m['role'] == '" + role + "' %}" + special + "{%- else %}" + otherwise + "{%- endif %}"


_PLAIN = _OPEN + _PARTS + _CLOSE
_ADD_SYSTEM = (
    "{%- if loop.first and m['role'] != 'system' %}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
)
QWEN2_5_VL = _each(_ADD_SYSTEM + _PLAIN)
"""Adds a system prompt of its own; tool results are turns of their own."""
QWEN3_VL = _each(_by_role("tool", _WRAPPED_TOOL.replace("PARTS", _PARTS), _PLAIN))
"""Tool results stand in a user turn."""
DROPS_TOOL_IMAGES = _each(_by_role("tool", _WRAPPED_TOOL.replace("PARTS", _TEXTS), _PLAIN))
REFUSES_TOOLS = _each(_by_role("tool", "{{- raise_exception('no tools') }}", _PLAIN))
REFUSES_SYSTEM = _each(_by_role("system", "{{- raise_exception('no system') }}", _PLAIN))
DROPS_ALL_IMAGES = _each(_OPEN + _TEXTS + _CLOSE)
DROPS_OLD_IMAGES = _each("{%- if loop.last %}" + _PLAIN + "{%- else %}" + _OPEN + _TEXTS + _CLOSE + "{%- endif %}")
REMOVES_THOUGHTS = _each(
    _by_role("assistant", _OPEN + "{{- m['content'].split('</think>')[-1].lstrip('\\n') }}" + _CLOSE, _PLAIN),
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}",
)
TRIMS_REPLIES = _each(_by_role("assistant", _OPEN + "{{- m['content'] | trim }}" + _CLOSE, _PLAIN))
TRIMS_USERS = _each(
    "{%- if m['content'] is string %}" + _OPEN + "{{- m['content'] | trim }}" + _CLOSE + "{%- else %}" + _PLAIN + "{%- endif %}"
)
NOT_CHATML = "{%- for m in messages %}{{- '[INST]' + m['content'] + '[/INST]' }}{%- endfor %}"
