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
    "{%- if m['content'] is string %}"
    + _OPEN
    + "{{- m['content'] | trim }}"
    + _CLOSE
    + "{%- else %}"
    + _PLAIN
    + "{%- endif %}"
)
NOT_CHATML = "{%- for m in messages %}{{- '[INST]' + m['content'] + '[/INST]' }}{%- endfor %}"
_TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n\\nFunctions that may be called:\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}{%- endif %}"
)
_HERMES_CALLS = (
    "{%- for c in m['tool_calls'] or [] %}{%- if (loop.first and m['content']) or not loop.first %}"
    "{{- '\\n' }}{%- endif %}{{- '<tool_call>\\n{\"name\": \"' + c['function']['name'] + '\", \"arguments\": ' }}"
    "{{- c['function']['arguments'] | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}"
)
_CODER_CALLS = (
    "{%- for c in m['tool_calls'] or [] %}{%- if loop.first %}{%- if m['content'] %}{{- '\\n\\n' }}{%- endif %}"
    "{%- else %}{{- '\\n' }}{%- endif %}{{- '<tool_call>\\n<function=' + c['function']['name'] + '>\\n' }}"
    "{%- for k, v in c['function']['arguments'].items() %}{{- '<parameter=' + k + '>\\n' }}"
    "{{- v if v is string else v | tojson }}{{- '\\n</parameter>\\n' }}{%- endfor %}"
    "{{- '</function>\\n</tool_call>' }}{%- endfor %}"
)


def _with_tools(calls: str) -> str:
    """The tools stand in the system turn, after the system message if there is one."""
    turns = _by_role("tool", _WRAPPED_TOOL.replace("PARTS", _PARTS), _OPEN + _PARTS + calls + _CLOSE)
    return _TOOLS + _each("{%- if not (tools and loop.first and m['role'] == 'system') %}" + turns + "{%- endif %}")


HERMES_TOOLS = _with_tools(_HERMES_CALLS)
"""As Qwen3-VL writes tools and calls of them."""
CODER_TOOLS = _with_tools(_CODER_CALLS)
"""As Qwen3.5 does."""
UNKNOWN_CALLS = _with_tools(
    "{%- for c in m['tool_calls'] or [] %}{{- '[' + c['function']['name'] + ']' }}{%- endfor %}"
)
_LAST_QUESTION = (
    "{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m['role'] == 'user' %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
)
_FORGETFUL_REPLY = (
    _OPEN + "{%- if loop.index0 > ns.last or '</think>' not in m['content'] %}{{- m['content'] }}{%- else %}"
    "{{- m['content'].split('</think>')[-1].lstrip('\\n') }}{%- endif %}" + _CLOSE
)
QWEN3_THINKING = _LAST_QUESTION + _each(
    _by_role("tool", _WRAPPED_TOOL.replace("PARTS", _PARTS), _by_role("assistant", _FORGETFUL_REPLY, _PLAIN)),
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}",
)
"""Removes thinking from replies before the last user message, keeps it in the tool calls since, and opens it in the
prompt."""
_TRIMMED = (
    "{%- set ns = namespace(t='') %}"
    + _PARTS.replace("{{- m['content'] }}", "{%- set ns.t = m['content'] %}")
    .replace(
        "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}",
        "{%- set ns.t = ns.t + '<|vision_start|><|image_pad|><|vision_end|>' %}",
    )
    .replace("{{- p['text'] }}", "{%- set ns.t = ns.t + p['text'] %}")
    + "{{- ns.t | trim }}"
)
QWEN3_5 = _each(_by_role("tool", _WRAPPED_TOOL.replace("PARTS", _TRIMMED), _OPEN + _TRIMMED + _CLOSE))
"""Trims every message."""
