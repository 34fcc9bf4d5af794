"""Drawings: what a check reads of a file, and what it makes of files that are forged, damaged or hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hostile_files
import pytest
from test_near_misses import end_of, judged

from deskhand.tasks.outcome import Scored
from deskhand.tasks.suites.basics import FAMILIES, drawings, office_files
from deskhand.tasks.suites.basics.cross_app import NOTE
from deskhand.tasks.suites.basics.drawings import DrawingScenario
from deskhand.tasks.suites.basics.told_ends import read_tree

EDITED = ("draw_delete", "draw_fill", "draw_place", "draw_page", "note_to_drawing")
RED = {"kind": "rect", "text": "One", "fill": "#ff0000", "box": [0.5, 1.2, 2.0, 3.4]}
BLUE = {"kind": "ellipse", "text": "a & b", "fill": "#2a6099", "box": [4.0, 0.1, 2.1, 1.2]}
DRAWING = office_files.drawing([("First", [RED, BLUE]), ("Second <", [])])


def changed(old: str, new: str, data: bytes = DRAWING) -> bytes:
    return hostile_files.rezipped(data, lambda name, xml: xml.replace(old.encode(), new.encode()))


async def test_a_drawing_is_read_as_it_was_written() -> None:
    found = await office_files.read_drawing(DRAWING)
    assert found == office_files.Drawing([("First", [RED, BLUE]), ("Second <", [])], "Deskhand")
    assert office_files.drawing(found.pages) == DRAWING


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ('svg:x="0.5in"', 'svg:x="1.27cm"', "box", [0.5, 1.2, 2.0, 3.4]),
        ('svg:x="0.5in"', 'svg:x="36pt"', "box", [0.5, 1.2, 2.0, 3.4]),
        ('svg:x="0.5in"', 'svg:x="12.7mm"', "box", [0.5, 1.2, 2.0, 3.4]),
        ('svg:x="0.5in"', 'svg:x="1.1.1in"', "", None),
        ('svg:x="0.5in" ', "", "box", [None, 1.2, 2.0, 3.4]),
        ('draw:fill="solid"', 'draw:fill="gradient"', "fill", "gradient"),
        ('draw:fill-color="#ff0000"', 'draw:fill-color="#FF0001"', "fill", "#ff0001"),
        ('draw:fill-color="#ff0000"', "", "fill", ""),
        ("draw:rect", "draw:custom-shape", "kind", "custom-shape"),
        ("One</text:p>", "One<text:span> and</text:span> a half</text:p><text:p>two</text:p>", "text",
         "One and a half\ntwo"),
    ],
)  # fmt: skip
async def test_lengths_fills_and_texts_are_read_as_libreoffice_may_write_them(
    old: str, new: str, key: str, value: object
) -> None:
    found = await office_files.read_drawing(changed(old, new))
    assert (found.pages[0][1][0][key] if found else None) == value


async def test_a_fill_comes_from_the_parent_style_and_a_circle_of_parents_ends() -> None:
    own = '<style:style style:name="gff0000" style:family="graphic" style:parent-style-name="standard">'
    plain = changed(f'{own}<style:graphic-properties draw:fill="solid"', f"{own}<style:graphic-properties")
    inherited = changed('draw:fill-color="#ff0000"', "", plain)
    parent = '<style:style style:name="standard" style:family="graphic"'
    for more in ("", ' style:parent-style-name="gff0000"'):
        teal = f'{parent}{more}><style:graphic-properties draw:fill-color="#158466"/></style:style>'
        found = await office_files.read_drawing(changed(f"{parent}/>", teal, inherited))
        assert found is not None
        assert found.pages[0][1][0]["fill"] == "#158466"


async def test_hostile_drawings_are_wrong_answers() -> None:
    for wreck in (hostile_files.with_wrong_deflate, hostile_files.encrypted, hostile_files.with_entities):
        assert await office_files.read_drawing(wreck(DRAWING)) is None, wreck
    deep = "<draw:g>" * 200_000 + "</draw:g>" * 200_000
    lacking = hostile_files.rezipped(DRAWING, lambda name, xml: b"" if name == "meta.xml" else xml)
    for data in (hostile_files.zip_bomb(DRAWING, 65 * 2**20), lacking, hostile_files.SLIDES, b"noise", b""):
        assert await office_files.read_drawing(data) is None
    found = await office_files.read_drawing(changed("<draw:rect", f"{deep}<draw:rect"))
    assert found is None or found.pages[0][1] != [RED, BLUE]


@pytest.mark.parametrize("name", EDITED)
async def test_a_right_drawing_is_paid_only_if_libreoffice_saved_it(name: str, tmp_path: Path) -> None:
    for seed in range(4):
        task, scenario = FAMILIES[name].generate(seed), DrawingScenario(name, seed)
        (path, forged), *_ = task.forged_files.items()
        note = {NOTE: "\n".join(map(": ".join, task.metadata["note"])).encode()} if "note" in task.metadata else {}
        forgery = forged()
        for data, value in ((forgery, 0.0), (changed("Deskhand", "LibreOffice", forgery), 1.0)):
            outcome = await judged(task, tmp_path / f"{seed}{value}", {path: data, **note}, {"Documents"})
            assert isinstance(outcome, Scored)
            assert outcome.value == value, outcome.failed
            assert {each.clause for each in outcome.failed} <= {"the application that saved the file"}
        assert forgery != scenario.content()


@pytest.mark.parametrize("name", [*EDITED, "draw_ask"])
def test_shapes_of_a_drawing_are_told_apart_and_stay_on_their_page(name: str) -> None:
    width, height = office_files.DRAWING_IN
    for seed in range(200):
        scenario = DrawingScenario(name, seed)
        for _, shapes in scenario.pages:
            assert len({drawings.look_of(shape) for shape in shapes}) == len(shapes)
            assert all(x + w < width and y + h < height and w != h for x, y, w, h in (each["box"] for each in shapes))
        words = [shape["text"] for _, shapes in scenario.pages for shape in shapes]
        assert len({*words, *scenario.new_words}) == len(words) + len(scenario.new_words)


@pytest.mark.parametrize("seed", range(40))
def test_a_moved_shape_stays_on_its_page(seed: int) -> None:
    words = FAMILIES["draw_place"].generate(seed).instruction.split()
    width, height, x, y = (float(word) for word in words if word[0].isdigit())
    assert x + width < office_files.DRAWING_IN[0]
    assert y + height < office_files.DRAWING_IN[1]


async def test_the_lock_of_an_open_drawing_is_no_change(tmp_path: Path) -> None:
    plan, files = "Documents/plan.odg", ("plan.odg", ".~lock.plan.odg#", ".~lock.other.odg#")
    guest: Any = end_of(tmp_path, {f"Documents/{name}": b"a" for name in files}, set())
    assert sorted(await read_tree(guest, {plan: b"a"})) == ["Documents/.~lock.other.odg#", plan]
