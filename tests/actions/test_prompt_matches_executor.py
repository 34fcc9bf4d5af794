"""Prompt, schema, parser and executor agree: whatever a prompt offers is parsed and executed on a real desktop."""

import json

import action_cases as cases
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from prompt_samples import offers
from schema_instances import instances

from deskhand.actions import conformance, formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.json_format import JsonActionFormat
from deskhand.actions.formats.limits import check_op, check_ops
from deskhand.actions.ops import TERMINAL_OPS, Drag, Key, KeyDown, KeyUp, MouseDown, MouseUp, Screenshot, Wait, Zoom
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local import action_executor
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import AgentError, ParseError

everyone = pytest.mark.parametrize("name", formats.available_formats())
JSON_FORMATS = [name for name in formats.available_formats() if isinstance(formats.get(name), JsonActionFormat)]
json_only = pytest.mark.parametrize("name", JSON_FORMATS)
VIEW = ScreenView(640, 480, 512, 384)
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
BY_THE_AGENT = (*TERMINAL_OPS, Screenshot, Zoom)
"""Ops that the agent handles, not the desktop."""


@everyone
@pytest.mark.parametrize("view", [*cases.VIEWS, VIEW], ids=str)
def test_actions_in_the_prompt_are_parsed_within_the_limits(name, view):
    action_format = formats.get(name)
    offered = offers(action_format, view)
    assert len(offered) >= 10
    kinds = set()
    for text in offered:
        ops = action_format.parse(text, view)
        assert check_ops(ops) is None
        for op in ops:
            check_op(op)
        kinds |= {type(op) for op in ops}
    if {MouseDown, MouseUp} <= kinds:  # what a drag from where the pointer is comes to
        kinds.add(Drag)
    said = {
        kind for kind in cases.supported(action_format) if "does not offer" not in action_format.supported_ops[kind].how
    }
    assert kinds >= said, "supported ops are missing from the prompt"


async def perform(replies):
    """Execute (text, ops) pairs on one desktop with short waits; return the errors by text."""
    desktop, raised, sequence = LocalDesktop(settle_ms=1, settle_timeout_s=0.2), {}, 0
    try:
        await desktop.reset(DesktopSpec("plain", VIEW.screen_width, VIEW.screen_height))
        for number, (text, ops) in enumerate(replies):
            acts = [
                Wait(min(op.seconds, 0.01)) if isinstance(op, Wait) else op
                for op in ops
                if not isinstance(op, BY_THE_AGENT)
            ]
            try:
                frame = await desktop.perform(acts, action_id=str(number))
            except AgentError as error:
                raised[text] = str(error)
            else:
                assert frame.sequence > sequence
                sequence = frame.sequence
    finally:
        await desktop.close()
    return raised


async def test_actions_in_every_prompt_are_executed_on_a_real_desktop():
    replies = {}
    for name in formats.available_formats():
        action_format = formats.get(name)
        for text in offers(action_format, VIEW):
            ops = tuple(action_format.parse(text, VIEW))
            if not all(isinstance(op, BY_THE_AGENT) for op in ops):
                replies.setdefault(ops, f"{name}: {text}")
    assert len(replies) > 100
    nonsense = formats.get("deskhand_json").parse('{"op":"key","keys":["nosuchkey"]}', VIEW)
    raised = await perform([*((text, ops) for ops, text in replies.items()), ("nonsense", nonsense)])
    assert set(raised) == {"nonsense"}
    assert "unknown key 'nosuchkey'" in raised["nonsense"]


@json_only
def test_the_schema_is_valid_and_defines_the_offered_actions(name):
    for view in (*cases.VIEWS, VIEW):
        action_format = formats.get(name)
        schema = action_format.schema(view)
        Draft202012Validator.check_schema(schema)
        offered = {action.name for action in action_format.json_actions(view) if action.offered}
        assert set(schema["$defs"]) == offered


@everyone
def test_only_json_formats_have_a_schema(name):
    assert (formats.get(name).schema(VIEW) is not None) == (name in JSON_FORMATS)


@json_only
def test_the_parser_accepts_what_the_schema_admits(name):
    """Test schema instances and mutations of them. A valid value is parsed and executable; an invalid one is rejected,
    or expresses ops that also have a valid form."""
    action_format, schema = formats.get(name), formats.get(name).schema(VIEW)
    validator = Draft202012Validator(schema)
    outcomes = set()

    @quick
    @given(instances(schema, schema["$defs"]), st.randoms())
    def check(value, chance):
        for candidate in (value, changed(value, chance), changed(changed(value, chance), chance)):
            admitted = validator.is_valid(candidate)
            found = cases.parse_or_error(action_format, json.dumps(candidate), VIEW)
            outcomes.add((admitted, isinstance(found, ParseError)))
            if isinstance(found, ParseError):
                assert not admitted or "nothing may follow" in found.reason or "zooms" in found.reason, (
                    f"{candidate}: {found}"
                )
                continue
            for op in found:
                action_executor._check(op)
            if not admitted and all(action_format.supported_ops[type(op)].kind == "lossless" for op in found):
                said = said_again(action_format, found)
                assert said is None or all(map(validator.is_valid, said)), f"{candidate}: {found}"

    check()
    assert {(True, False), (False, True)} <= outcomes


def said_again(action_format, ops):
    """Return the JSON values that the format writes for `ops`; None if it cannot express them."""
    try:
        return [value for value, _ in action_format.values(action_format.emit(ops, VIEW))]
    except AgentError:
        return None


def changed(value, chance):
    """Return `value` with one element removed, added or replaced."""
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        rest = {other: inner for other, inner in value.items() if other != key}
        return chance.choice([rest, value | {"surprise": 1}, *[rest | {key: changed(value[key], chance)}] * 3])
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        before, item, after = value[:at], value[at], value[at + 1 :]
        return chance.choice([before + after, [*value, item], [*before, changed(item, chance), *after]])
    return chance.choice([0, -1, 1, 0.5, 1e6, "", "down", "x", None, True, [], {}, [1, 2], {"x": 1, "y": 2}, value])


@json_only
def test_emitted_ops_are_valid_under_the_schema(name):
    action_format = formats.get(name)

    @quick
    @given(cases.in_any_view(cases.one_op, action_format))
    @example((VIEW, [Key(("ctrl", "+"))]))
    @example((VIEW, [KeyDown("+")]))
    def check(case):
        view, (op,) = case
        keys = op.keys if isinstance(op, Key) else [op.key] if isinstance(op, (KeyDown, KeyUp)) else []
        try:
            text = action_format.emit([op], view)
        except AgentError:
            return
        if not all(map(str.isascii, keys)):  # the patterns of keys name those of a keyboard
            return
        validator = Draft202012Validator(action_format.schema(view))
        for value, _ in action_format.values(text):
            assert validator.is_valid(value), f"{op} was said as {value}: {next(validator.iter_errors(value)).message}"

    check()


@json_only
def test_corpus_ops_have_a_form_that_constrained_decoding_allows(name):
    action_format, said = formats.get(name), 0
    for case in conformance.load_cases(name):
        if case.ops is None:
            continue
        view = ScreenView(*case.view)
        try:
            text = action_format.emit(action_format.parse(case.text, view), view)
        except AgentError:
            continue
        validator = Draft202012Validator(action_format.schema(view))
        assert all(validator.is_valid(value) for value, _ in action_format.values(text)), f"{case.where}: {text}"
        said += 1
    assert said >= 10
