"""What a JSON dialect offers is what it reads: schema, prompt, parser and emitter follow from one table."""

import json

import action_cases as cases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deskhand.actions import formats
from deskhand.actions.formats import json_schema
from deskhand.actions.formats.json_format import JsonActionFormat
from deskhand.actions.keys import NAMES
from deskhand.desktop.local import action_executor
from deskhand.errors import AgentError, ParseError

OBJECTS = [name for name in formats.available_formats() if isinstance(formats.get(name), JsonActionFormat)]
everyone = pytest.mark.parametrize("name", OBJECTS)
TYPABLE = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\t"), max_size=12)


def instances(schema, defined):
    """Values that a schema of ours admits: all the keywords that `rules` writes, and no others."""
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
    raise AssertionError(f"what is {schema}?")


@everyone
@pytest.mark.parametrize("view", cases.VIEWS[1:3], ids=str)
def test_what_the_schema_admits_is_read_and_can_be_performed(name, view):
    dialect = formats.get(name)
    schema = dialect.schema(view)
    screen = (view.screen_width, view.screen_height)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(instances(schema, schema["$defs"]))
    def check(value):
        found = cases.read_or_refused(dialect, json.dumps(value), view)
        if isinstance(found, ParseError):  # the one thing that a schema of single actions cannot say
            assert "nothing may follow" in found.reason, f"{value}: {found}"
            return
        for op in found:
            action_executor._check(op)
            for point in action_executor._points(op):
                cases.to_screen_px(point, *screen)

    check()


@everyone
@pytest.mark.parametrize("view", cases.VIEWS, ids=str)
def test_every_action_is_in_the_prompt_and_its_example_is_read(name, view):
    dialect = formats.get(name)
    prompt = dialect.prompt(view)
    for form in dialect.forms(view):
        if form.offered:
            action = dialect.action(form.name, form.shown)
            assert f"{form.name}" in prompt
            ops = dialect.parse(dialect.reply([action]), view)
            assert ops
            if form.example is not None and not dialect.apart_kinds:
                assert cases.same([form.example], ops, view)
            for op in ops:
                action_executor._check(op)


@everyone
def test_the_schema_has_every_action_that_is_offered(name):
    dialect, view = formats.get(name), cases.VIEWS[0]
    schema = dialect.schema(view)
    assert set(schema["$defs"]) == {form.name for form in dialect.forms(view) if form.offered}
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (json_schema.integer(0, 5), [0, 5, 3.0], [-1, 6, 2.5, "3", True, None, float("nan")]),
        (json_schema.number(0, 1), [0, 0.5, 1], [-0.1, 1.1, "0.5", False, float("inf")]),
        (json_schema.number_below(0, 10), [0, 9.99], [10, -1]),
        (json_schema.one_of("a", "b"), ["a"], ["c", 1, None]),
        (json_schema.text(1, 3), ["a", "abc"], ["", "abcd", 3, "\ud800"]),
        (
            json_schema.fixed_items(json_schema.integer(0, 5), json_schema.integer(0, 9)),
            [[5, 9]],
            [[6, 9], [5, 10], [5], [1, 2, 3], "12", {}],
        ),
        (json_schema.items(json_schema.text(), 1, 2), [["a"], ["a", "b"]], [[], ["a"] * 3, [1], "a"]),
        (json_schema.object_of(x=json_schema.integer(0, 1)), [{"x": 1}], [{}, {"x": 2}, {"x": 1, "y": 1}, [], None]),
        (json_schema.BOOLEAN, [True, False], [0, 1, "true", None]),
        (json_schema.ANYTHING, [None, 1, "a", [], {}], []),
    ],
)
def test_rules_say_what_they_admit(rule, good, bad):
    for value in good:
        json_schema.check("it", value, rule)
    for value in bad:
        with pytest.raises(AgentError, match=r"^it"):
            json_schema.check("it", value, rule)
