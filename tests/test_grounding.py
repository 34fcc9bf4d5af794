"""Screenshots with questions: rows of the agent's first turn whose answers hit the asked element."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from fake_desktop import PaintedPool, square_task

from deskhand.actions.formats import deskhand_json
from deskhand.actions.ops import REL_1000, Click, Drag, Point, screen_px, to_screen_px
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.config.schema import AgentConfig
from deskhand.errors import InfrastructureError
from deskhand.models.load import load_processors
from deskhand.recipes.grounding import StoredScreen, collect_screens, on_grid, read_screens, screen_rows, write_screens
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.store.frames import Frames
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Rect

BOXES = [Rect(10, 20, 60, 50), Rect(100, 150, 140, 200), Rect(5, 180, 45, 220)]
QUESTIONS = tuple((f"Click on number {number}.", box) for number, box in enumerate(BOXES))
PIXELS = np.zeros((224, 160, 3), np.uint8)
SCREEN = StoredScreen(
    "any", hashlib.sha256(PIXELS.data).hexdigest(), 160, 224, (*QUESTIONS, ("Click on the first.", BOXES[0]))
)


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer(load_processors("tiny")[0], source="tiny")


@pytest.fixture(scope="module")
def images() -> ImageCache:
    return ImageCache(load_processors("tiny")[1], fetch=lambda _: PIXELS)


def rows_of(renderer, images, style="compact", **changes):
    agent = DesktopAgent(AgentConfig(action_format="deskhand_json", prompt_style=style))
    options = {"max_questions": 6, "grid": 20, "seed": 0, **changes}
    return screen_rows(SCREEN, agent, renderer, images, **options)


def told(renderer, row) -> tuple[str, str]:
    """The prompt without placeholders, and the reply."""
    first = row.target.index(True)
    prompt = load_processors("tiny")[0].decode(row.token_ids[:first]).replace("<|image_pad|>", "")
    return prompt, load_processors("tiny")[0].decode(row.token_ids[first:])


@pytest.mark.parametrize("style", ["compact", "full"])
def test_each_answer_clicks_in_the_middle_of_what_is_asked(renderer, images, style):
    rows = rows_of(renderer, images, style)
    assert len(rows) == len(BOXES), "one question about each box"
    asked = dict(SCREEN.questions)
    hit = set()
    for row in rows:
        prompt, reply = told(renderer, row)
        (question,) = [text for text in asked if text in prompt]
        assert prompt.endswith("<|im_start|>assistant\n")
        assert reply.endswith("<|im_end|>")
        (click,) = deskhand_json.parse(reply.removesuffix("<|im_end|>"))
        assert click.point.x % 20 == click.point.y % 20 == 0
        assert asked[question].contains(*to_screen_px(click.point, 160, 224))
        assert [span.sha256 for span in row.spans] == [SCREEN.sha256]
        assert all(row.target[row.target.index(True) :]), "only the reply is trained"
        hit.add(asked[question])
    assert hit == set(BOXES)


def test_rows_depend_on_the_seed_alone(renderer, images):
    assert rows_of(renderer, images) == rows_of(renderer, images)
    assert rows_of(renderer, images) != rows_of(renderer, images, seed=1)
    assert len(rows_of(renderer, images, max_questions=2)) == 2


def test_screens_are_read_as_written(tmp_path):
    write_screens(tmp_path / "screens.jsonl", [SCREEN])
    assert read_screens(tmp_path / "screens.jsonl") == [SCREEN]
    assert len(json.loads((tmp_path / "screens.jsonl").read_text())) == 5


class Unreliable(PaintedPool):
    """Its first two desktops cannot be leased."""

    asked = 0

    async def lease(self, spec=None):
        self.asked += 1
        if self.asked <= 2:
            raise InfrastructureError("no desktop")
        lease = await super().lease(spec)
        await lease.desktop.reset(spec)
        return lease


@pytest.mark.parametrize(("starts", "kept"), [(40, 38), (39, None)])
async def test_few_failed_starts_are_left_out_and_many_are_an_outage(tmp_path, starts, kept):
    async def targets(desktop):
        return [("Click on blue.", desktop.squares["blue"])]

    plan = [(replace(square_task(seed), grounding_targets=targets), 1) for seed in range(starts)]
    pool = Unreliable(2)
    collecting = collect_screens(pool, plan, Frames(tmp_path), 2)
    if kept is None:
        with pytest.raises(InfrastructureError, match="no desktop"):
            await collecting
    else:
        assert len(await collecting) == kept
    assert not pool.leased


async def test_the_oracle_points_on_the_grid():
    pixels = screen_px(160, 224)

    async def oracle(_):
        yield [Click(Point(33, 77, pixels)), Click()]
        yield [Drag((Point(1, 1, pixels), Point(159, 223, pixels)))]

    task = replace(basics.make_task("dialog_choice", 0), oracle=oracle)
    found = [ops async for ops in on_grid(task, 20).oracle(None)]
    assert found == [
        [Click(Point(200, 340, REL_1000)), Click()],
        [Drag((Point(0, 0, REL_1000), Point(1000, 1000, REL_1000)))],
    ]
    assert on_grid(task, 1) is task
