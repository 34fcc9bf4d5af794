"""Oracles act on what the instruction says or a frame has shown. `check_family_live` applies this to every family."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest
from desktops import ISOLATIONS, desktop_for

from deskhand.actions.ops import Done, Key, Op, Type
from deskhand.desktop.applications.install import missing
from deskhand.tasks.family_checks import check_family, check_family_live
from deskhand.tasks.oracle_sight import has_glyphs, needs_frames, shown_texts, sources_of, unread_texts
from deskhand.tasks.suites import family_registry, miniwob
from deskhand.tasks.suites.basics import FAMILIES
from deskhand.tasks.suites.miniwob import solutions
from deskhand.tasks.task import Task

TELLING = pytest.mark.skipif("namespaces" not in ISOLATIONS, reason="guests without a name have no accessibility tree")
NODE = (
    '<text name="{}" xmlns:cp="https://accessibility.ubuntu.example.org/ns/component" cp:screencoord="({}, {})" '
    'cp:size="(40, 20)">{}</text>'
)


def acting(task: Task, *steps: list[Op]) -> Task:
    """The task with an oracle of these steps."""

    async def oracle(desktop: object) -> AsyncIterator[list[Op]]:
        for ops in steps:
            yield ops
        yield [Done()]

    return replace(task, oracle=oracle)


def test_a_word_is_explained_by_the_instruction_by_general_knowledge_or_by_texts_that_are_named() -> None:
    task = replace(
        family_registry.make_task("terminal_run", 1), oracle_knows=("sort -u",), oracle_follows={"7": ("one", "two")}
    )
    told = "Write the lines of Words.txt into plan.txt"

    def sources(*ops: Op) -> dict[str, tuple[str, ...]]:
        return sources_of(task, told, ops)

    assert sources(Type("sort -u words.txt > plan.txt\n")) == {}
    assert sources(Type("sort -r words.txt")) == {"r": ("r",)}
    assert sources(Type("7\t417")) == {"7": ("one", "two"), "417": ("417",)}
    assert not needs_frames(replace(task, oracle_follows=None), told, [[Type("417")]])


def test_a_repeated_key_must_be_explained_and_a_single_one_not() -> None:
    task = replace(family_registry.make_task("terminal_run", 1), oracle_follows={"Down several times": ("Lamp",)})
    once, down, right = Key(("Down",)), [Key(("down",))] * 3, [Key(("ctrl", "right"))] * 2
    assert sources_of(task, "", [once, Key(("Tab",)), once]) == {}
    assert sources_of(task, "", down) == {"down several times": ("Lamp",)}
    assert sources_of(task, "", right) == {"right several times": ()}


def test_only_what_lies_on_the_screen_counts_as_shown() -> None:
    nodes = NODE.format("Oslo", 10, 10, "417"), NODE.format("Lima", 10, 700, ""), NODE.format("Rome", -50, 10, "")
    hidden = "<text name='Cairo'>981</text>"
    assert shown_texts(f"<desktop-frame>{''.join(nodes)}{hidden}</desktop-frame>", 1280, 710) == ["Oslo", "417"]


def test_an_empty_screen_shows_no_glyphs() -> None:
    assert not has_glyphs(np.zeros((60, 120, 3), np.uint8), "A7F3")


def test_general_knowledge_does_not_depend_on_the_seed() -> None:
    good = FAMILIES["shell_sort"]
    secret = replace(good, generate=lambda seed: replace(good.generate(seed), oracle_knows=(str(seed),)))
    assert check_family(good, range(4)) == []
    (problem,) = check_family(secret, range(4))
    assert "oracle_knows differs between seeds" in problem


@TELLING
async def test_a_code_that_a_terminal_shows_may_be_typed_and_another_not() -> None:
    family = FAMILIES["code_copy"]
    assert await check_family_live(family, [3], desktop_for) == []
    guess: list[Op] = [Type("Q2Z5")]
    many: list[Op] = [Key(("tab",))] * 2
    blind = replace(family, generate=lambda seed: acting(family.generate(seed), guess, many))
    *_, first, second = await check_family_live(blind, [3], desktop_for)
    assert first.endswith("the oracle's step 1 acts on 'q2z5', and no frame has shown 'q2z5'")
    assert second.endswith("the oracle's step 2 acts on 'tab several times', and oracle_follows lists no text")


@TELLING
@pytest.mark.skipif(bool(missing(["chromium"])), reason="not installed: deskhand desktop install chromium")
async def test_a_price_below_the_edge_of_the_screen_may_be_typed_only_after_it_was_shown() -> None:
    task = replace(FAMILIES["page_look_up"].generate(0), accessibility=True)
    assert task.example_end_states is not None
    right = task.example_end_states().positive
    assert right is not None
    price = right["Downloads/answer.txt"].decode().split()[0]
    blind: list[list[Op]] = [[Key(("tab",))], [Type(price)]]
    cases: list[tuple[Task, list[str]]] = [
        (task, []),
        (acting(task, *blind), [f"step 2 acts on '{price}', and no frame has shown '{price}'"]),
    ]
    for oracle, problems in cases:
        async with desktop_for(task) as desktop:
            await task.setup(desktop)
            assert await unread_texts(oracle, desktop, blind) == problems


@pytest.mark.skipif(miniwob.unavailable_reason() is not None, reason="MiniWoB++ is not installed")
@pytest.mark.skipif(bool(missing(["chromium-shell"])), reason="not installed: deskhand desktop install chromium-shell")
async def test_a_solution_of_a_miniwob_page_reads_only_what_the_screen_shows() -> None:
    task = miniwob.make_task("simple-arithmetic", 1)
    async with desktop_for(task) as desktop:
        await task.setup(desktop)
        page = miniwob.chromium.session_of(desktop)
        for hide in ("style.visibility = 'hidden'", "style.cssText = 'position: fixed; top: 900px'"):
            await page.evaluate(f"(document.querySelector('#math-problem').{hide}, true)")
            with pytest.raises(miniwob.chromium.PageError, match="the screen does not show"):
                async for _ in solutions.solve("simple-arithmetic", page, task.width, task.height):
                    pass
