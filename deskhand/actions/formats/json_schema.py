"""JSON-schema rules (draft 2020-12) and their validation.

`check` accepts what the schema accepts, so the published schema and the parser agree. Two constraints are left to the
caller: `pattern` (key names) and keys that must be given together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deskhand.actions.formats.limits import MAX_TEXT, check_text, truncate_repr
from deskhand.errors import AgentError

Rule = Mapping[str, Any]


def integer(minimum: int, maximum: int) -> Rule:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def number(minimum: float, maximum: float) -> Rule:
    return {"type": "number", "minimum": minimum, "maximum": maximum}


def number_below(minimum: float, end: float) -> Rule:
    """A number from `minimum` up to, but excluding, `end`."""
    return {"type": "number", "minimum": minimum, "exclusiveMaximum": end}


def text(min_length: int = 0, max_length: int = MAX_TEXT) -> Rule:
    return {"type": "string", "minLength": min_length, "maxLength": max_length}


def one_of(*values: str) -> Rule:
    return {"type": "string", "enum": list(values)}


def items(rule: Rule, min_items: int, max_items: int) -> Rule:
    return {"type": "array", "items": rule, "minItems": min_items, "maxItems": max_items}


def fixed_items(*values: Rule) -> Rule:
    """A list of exactly these values, in order."""
    count = len(values)
    return {"type": "array", "prefixItems": list(values), "items": False, "minItems": count, "maxItems": count}


def object_of(**keys: Rule) -> dict[str, Any]:
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


BOOLEAN: Rule = {"type": "boolean"}
ANYTHING: Rule = {}
"""Accepts any value, for keys that are ignored."""

_KINDS = {
    "number": (int, float),
    "integer": (int, float),
    "string": str,
    "array": list,
    "object": dict,
    "boolean": bool,
}


def check(where: str, value: Any, rule: Rule) -> None:
    """Raise `AgentError` starting with `where` unless `value` satisfies `rule`."""
    kind = rule.get("type")
    if kind is None:
        return
    wrong_kind = not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "boolean")
    if wrong_kind or (kind == "integer" and isinstance(value, float) and not value.is_integer()):
        raise AgentError(f"{where} must be {'an' if kind[0] in 'aio' else 'a'} {kind}, not {truncate_repr(value)}")
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        _check_range(where, value, rule)
    elif isinstance(value, str):
        _check_text(where, value, rule)
    elif isinstance(value, list):
        if not rule["minItems"] <= len(value) <= rule["maxItems"]:
            bounds = " to ".join(map(str, dict.fromkeys((rule["minItems"], rule["maxItems"]))))
            raise AgentError(f"{where} must hold {bounds} items, not {len(value)}")
        for item, inner in zip(value, rule.get("prefixItems") or [rule["items"]] * len(value), strict=True):
            check(where, item, inner)
    else:
        check_keys(where, value, rule["properties"], rule["required"])


def check_keys(where: str, value: Mapping[str, Any], rules: Mapping[str, Rule], required: Sequence[str]) -> None:
    """Raise `AgentError` if a key is unknown, invalid, or required and missing."""
    for key in value:
        if key not in rules:
            raise AgentError(f"{where} has no key {truncate_repr(key)}; its keys: {', '.join(rules) or 'none'}")
    for key in required:
        if key not in value:
            raise AgentError(f"{where} needs the key {key}")
    for key, rule in rules.items():
        if key in value:
            check(f"{where}.{key}", value[key], rule)


def _check_range(where: str, value: float, rule: Rule) -> None:
    minimum, end = rule["minimum"], rule.get("exclusiveMaximum")
    maximum = rule.get("maximum", end)
    if not minimum <= value <= maximum or value == end:
        note = "" if end is None else " (the end not included)"
        raise AgentError(f"{where}={truncate_repr(value)} is outside {minimum}..{maximum}{note}")


def _check_text(where: str, value: str, rule: Rule) -> None:
    if "enum" not in rule:
        if len(value) < rule["minLength"]:
            raise AgentError(f"{where} must not be empty")
        check_text(where, value, rule["maxLength"])
    elif value not in rule["enum"]:
        raise AgentError(f"{where}={truncate_repr(value)} is not one of {', '.join(rule['enum'])}")


def describe_rule(rule: Rule) -> str:
    """Return a short description of a rule for a prompt: `left|right`, `1..3`, `text`."""
    kind = rule.get("type")
    if "enum" in rule:
        return "|".join(rule["enum"])
    if kind in ("integer", "number"):
        return f"{rule['minimum']}..{rule['maximum']}" if "maximum" in rule else "a number"
    if kind == "array":
        if "prefixItems" in rule:
            return f"[{', '.join(map(describe_rule, rule['prefixItems']))}]"
        return f"a list of {describe_rule(rule['items'])}"
    return {"boolean": "true|false", "object": "an object"}.get(str(kind)) or rule.get("title") or "text"


def whole_as_int(value: Any) -> Any:
    """Convert a float without a fraction to an integer, so that 300.0 is written as 300."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
