"""Hypothesis strategy for the JSON schemas of action formats."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from deskhand.actions.keys import NAMES

TYPABLE = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=12)


def instances(schema: dict[str, Any], defined: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Strategy of the values that a schema admits; supports the keywords that `json_schema` writes."""
    if "$ref" in schema:
        return instances(defined[schema["$ref"].rsplit("/", 1)[1]], defined)
    if "oneOf" in schema:
        return st.one_of(*(instances(one, defined) for one in schema["oneOf"]))
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "integer":
            return st.integers(schema["minimum"], schema["maximum"])
        case "number":
            end = schema.get("exclusiveMaximum")
            return st.floats(schema["minimum"], schema.get("maximum", end), exclude_max=end is not None)
        case "boolean":
            return st.booleans()
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True)
        case "string" if "title" in schema:
            return st.sampled_from(NAMES)
        case "string":
            return TYPABLE.filter(lambda text: len(text) >= schema["minLength"])
        case "array" if "prefixItems" in schema:
            return st.tuples(*(instances(item, defined) for item in schema["prefixItems"])).map(list)
        case "array":
            return st.lists(
                instances(schema["items"], defined),
                min_size=schema["minItems"],
                max_size=min(schema["maxItems"], schema["minItems"] + 2),
            )
        case "object":
            required = {key: instances(schema["properties"][key], defined) for key in schema["required"]}
            optional = {
                key: instances(rule, defined) for key, rule in schema["properties"].items() if key not in required
            }
            depending = schema.get("dependentRequired", {})
            return st.fixed_dictionaries(required, optional=optional).filter(
                lambda value: all(other in value for key in value for other in depending.get(key, ()))
            )
    raise AssertionError(f"unsupported schema: {schema}")
