"""Prompt, schema, parser and executor agree: what a prompt offers is read, and what is read is performed on a real desktop."""

import json

import action_cases as cases
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from prompt_samples import offers
from test_objects import OBJECTS, instances

from deskhand.actions import conformance, formats
from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.limits import check_op, check_ops
from deskhand.actions.ops import TERMINAL_OPS, Drag, Key, KeyDown, KeyUp, MouseDown, MouseUp, Screenshot, Wait, Zoom
from deskhand.desktop.base import DesktopSpec
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.errors import AgentError, ParseError

everyone = pytest.mark.parametrize("name", formats.available_formats())
json_only = pytest.mark.parametrize("name", OBJECTS)
VIEW = ScreenView(640, 480, 512, 384)
quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
BY_THE_AGENT = (*TERMINAL_OPS, Screenshot, Zoom)
"""What is the agent's to do: the end, the next screenshot, and what was zoomed in on."""


@everyone
@pytest.mark.parametrize("view", [*cases.VIEWS, VIEW], ids=str)
def test_what_the_prompt_offers_is_read_within_the_limits(name, view):
    dialect = formats.get(name)
    offered = offers(dialect, view)
    assert len(offered) >= 10
    kinds = set()
    for text in offered:
        ops = dialect.parse(text, view)
        assert check_ops(ops) is None
        for op in ops:
            check_op(op)
        kinds |= {type(op) for op in ops}
    if {MouseDown, MouseUp} <= kinds:  # what a drag from where the pointer is comes to
        kinds.add(Drag)
    said = {kind for kind in cases.carried(dialect) if "does not offer" not in dialect.supported_ops[kind].how}
    assert kinds >= said, "the prompt says nothing of what the dialect carries"


async def perform(replies):
    """Perform the ops of (text, ops) on one desktop, waits cut short; what was raised, by text."""
    desktop, raised, sequence = LocalDesktop(quiet_ms=1, cap_s=0.2), {}, 0
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


async def test_what_every_prompt_offers_is_performed_on_a_real_desktop():
    replies = {}
    for name in formats.available_formats():
        dialect = formats.get(name)
        for text in offers(dialect, VIEW):
            ops = tuple(dialect.parse(text, VIEW))
            if not all(isinstance(op, BY_THE_AGENT) for op in ops):
                replies.setdefault(ops, f"{name}: {text}")
    assert len(replies) > 100
    nonsense = formats.get("deskhand_json").parse('{"op":"key","keys":["nosuchkey"]}', VIEW)
    raised = await perform([*((text, ops) for ops, text in replies.items()), ("nonsense", nonsense)])
    assert set(raised) == {"nonsense"}
    assert "unknown key 'nosuchkey'" in raised["nonsense"]


@json_only
def test_the_schema_is_valid_json_schema(name):
    for view in (*cases.VIEWS, VIEW):
        Draft202012Validator.check_schema(formats.get(name).schema(view))


@everyone
def test_only_replies_that_are_json_have_a_schema(name):
    assert (formats.get(name).schema(VIEW) is not None) == (name in OBJECTS)


@json_only
def test_what_the_schema_admits_is_what_is_read(name):
    """Values of the schema, and the same with something changed: where a validator of JSON schema admits one, it is read; where
    it does not, it is refused, or it is another way to say what some admitted value says."""
    dialect, schema = formats.get(name), formats.get(name).schema(VIEW)
    validator = Draft202012Validator(schema)
    outcomes = set()

    @quick
    @given(instances(schema, schema["$defs"]), st.randoms())
    def check(value, chance):
        for candidate in (value, changed(value, chance), changed(changed(value, chance), chance)):
            admitted = validator.is_valid(candidate)
            found = cases.read_or_refused(dialect, json.dumps(candidate), VIEW)
            outcomes.add((admitted, isinstance(found, ParseError)))
            if isinstance(found, ParseError):
                assert not admitted or "nothing may follow" in found.reason or "zooms" in found.reason, (
                    f"{candidate}: {found}"
                )
            elif not admitted and all(dialect.supported_ops[type(op)].kind == "lossless" for op in found):
                said = said_again(dialect, found)
                assert said is None or all(map(validator.is_valid, said)), f"{candidate}: {found}"

    check()
    assert {(True, False), (False, True)} <= outcomes


def said_again(dialect, ops):
    """The values in which the dialect itself says `ops`; None when it has no words for them."""
    try:
        return [value for value, _ in dialect.values(dialect.emit(ops, VIEW))]
    except AgentError:
        return None


def changed(value, chance):
    """`value` with one thing in it left out, added, or made another."""
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        rest = {other: inner for other, inner in value.items() if other != key}
        match chance.randrange(5):
            case 0:
                return rest
            case 1:
                return value | {"surprise": 1}
            case _:
                return rest | {key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return chance.choice(
            [
                value[:at] + value[at + 1 :],
                [*value, value[at]],
                [*value[:at], changed(value[at], chance), *value[at + 1 :]],
            ]
        )
    return chance.choice([0, -1, 1, 0.5, 1e6, "", "down", "x", None, True, [], {}, [1, 2], {"x": 1, "y": 2}, value])


@json_only
def test_every_op_that_is_said_is_admitted_by_the_schema(name):
    dialect = formats.get(name)

    @quick
    @given(cases.in_any_view(cases.one_op, dialect))
    def check(case):
        view, (op,) = case
        keys = op.keys if isinstance(op, Key) else [op.key] if isinstance(op, (KeyDown, KeyUp)) else []
        try:
            text = dialect.emit([op], view)
        except AgentError:
            return
        if not all(map(str.isascii, keys)):  # the patterns of keys name those of a keyboard
            return
        validator = Draft202012Validator(dialect.schema(view))
        for value, _ in dialect.values(text):
            assert validator.is_valid(value), f"{op} was said as {value}: {next(validator.iter_errors(value)).message}"

    check()


@json_only
def test_what_the_corpus_reads_can_be_said_within_the_schema(name):
    """However a published reply is written, the ops that it means have a form that constrained decoding would let through."""
    dialect, said = formats.get(name), 0
    for case in conformance.load_cases(name):
        if case.ops is None:
            continue
        view = ScreenView(*case.view)
        try:
            text = dialect.emit(dialect.parse(case.text, view), view)
        except AgentError:
            continue
        validator = Draft202012Validator(dialect.schema(view))
        assert all(validator.is_valid(value) for value, _ in dialect.values(text)), f"{case.where}: {text}"
        said += 1
    assert said >= 10
