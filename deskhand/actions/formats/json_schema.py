"""What a JSON value may be. Invariant: a rule is a piece of JSON schema (draft 2020-12), and `check` accepts what that schema
accepts, so the schema that is shown and the values that are read cannot differ.

Two things are checked by whoever reads the value, not here: `pattern` (names of keys) and that x and y come together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deskhand.actions.formats.limits import MAX_TEXT, check_text, truncate_repr
from deskhand.errors import AgentError

Rule = Mapping[str, Any]


def integer(least: int, most: int) -> Rule:
    return {"type": "integer", "minimum": least, "maximum": most}


def number(least: float, most: float) -> Rule:
    return {"type": "number", "minimum": least, "maximum": most}


def number_below(least: float, end: float) -> Rule:
    """From `least` up to, and not including, `end`."""
    return {"type": "number", "minimum": least, "exclusiveMaximum": end}


def text(least: int = 0, most: int = MAX_TEXT) -> Rule:
    return {"type": "string", "minLength": least, "maxLength": most}


def one_of(*values: str) -> Rule:
    return {"type": "string", "enum": list(values)}


def items(rule: Rule, least: int, most: int) -> Rule:
    return {"type": "array", "items": rule, "minItems": least, "maxItems": most}


def fixed_items(*values: Rule) -> Rule:
    """A list of exactly these values in turn."""
    return {
        "type": "array",
        "prefixItems": list(values),
        "items": False,
        "minItems": len(values),
        "maxItems": len(values),
    }


def object_of(**keys: Rule) -> dict[str, Any]:
    """An object that has exactly these keys."""
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


BOOLEAN: Rule = {"type": "boolean"}
ANYTHING: Rule = {}
"""A key that is read and means nothing to a desktop."""

_KINDS: dict[str, tuple[type, ...]] = {
    "number": (int, float),
    "integer": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "boolean": (bool,),
}


def check(where: str, value: Any, rule: Rule) -> None:
    """Raise `AgentError` that names `where` unless `value` follows `rule`."""
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
            raise AgentError(f"{where} must hold {_span(rule['minItems'], rule['maxItems'])} items, not {len(value)}")
        for item, inner in zip(value, rule.get("prefixItems") or [rule["items"]] * len(value), strict=True):
            check(where, item, inner)
    else:
        check_keys(where, value, rule["properties"], rule["required"])


def check_keys(where: str, value: Mapping[str, Any], rules: Mapping[str, Rule], required: Sequence[str]) -> None:
    """Raise `AgentError` unless every key of `value` is known and follows its rule, and the required ones are there."""
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
    least = rule["minimum"]
    if "maximum" in rule:
        fine, bounds = least <= value <= rule["maximum"], f"{least}..{rule['maximum']}"
    else:
        fine, bounds = (
            least <= value < rule["exclusiveMaximum"],
            f"{least}..{rule['exclusiveMaximum']} (the end not included)",
        )
    if not fine:
        raise AgentError(f"{where}={truncate_repr(value)} is outside {bounds}")


def _check_text(where: str, value: str, rule: Rule) -> None:
    if "enum" in rule:
        if value not in rule["enum"]:
            raise AgentError(f"{where}={truncate_repr(value)} is not one of {', '.join(rule['enum'])}")
        return
    if len(value) < rule["minLength"]:
        raise AgentError(f"{where} must not be empty")
    check_text(where, value, rule["maxLength"])


def describe_rule(rule: Rule) -> str:
    """A rule in few words, for a prompt: `left|right`, `1..3`, `text`."""
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


def strip_description(value: Any) -> Any:
    """A number without a fraction as an integer, so that 300.0 is written 300."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _span(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"
