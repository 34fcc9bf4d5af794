"""`agent.max_pixels`: a large screen is scaled down before it is sent, and actions are scaled up to the desktop."""

from __future__ import annotations

import base64
import io

import fake_desktop
import numpy as np
import pytest
from PIL import Image

from deskhand.actions import formats
from deskhand.actions.formats.limits import points_of
from deskhand.actions.formats.smart_resize import model_image_size
from deskhand.actions.ops import Click, Done, Point, Zoom, screen_px, to_screen_px
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.agents.zoom import crop_and_enlarge
from deskhand.desktop.base import DesktopSpec, Frame
from deskhand.errors import ConfigError
from deskhand.recorder.images import ImageCache

SIZE = (1920, 1080)
MOST = 1280 * 720
AREAS = {"Qwen2.5-VL": (14, 3136, 12845056), "Qwen3-VL": (16, 65536, 16777216)}
"""Patch size and bounds of the published image processors."""


def processor_of(family: str, most: int | None = None):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    patch, least, own_most = AREAS[family]
    size = {"shortest_edge": least, "longest_edge": most or own_most}
    return Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, size=size)


def noise(width: int, height: int) -> Frame:
    pixels = np.random.default_rng([width, height]).integers(0, 256, (height, width, 4), dtype=np.uint8)
    return Frame(pixels, 1, "x", 1.0, "quiet", None, (0, 0))


class NoisyDesktop(fake_desktop.PaintedDesktop):
    """A desktop of 1920x1080 whose pixels all differ; `hits` are the pixels that were clicked."""

    async def reset(self, spec: DesktopSpec) -> Frame:
        self.hits: list[tuple[int, int]] = []
        return await super().reset(DesktopSpec("plain", *SIZE))

    async def observe(self) -> Frame:
        return noise(*SIZE)

    async def perform(self, ops, *, action_id):
        self.hits += [to_screen_px(point, *SIZE) for op in ops for point in points_of(op)]
        return await super().perform(ops, action_id=action_id)


@pytest.mark.parametrize("family", AREAS)
@pytest.mark.parametrize("size", [SIZE, (1920, 1200), (1366, 768), (1080, 1920)])
def test_the_model_gets_the_pixels_of_its_own_preprocessing_with_that_maximum(family, size):
    frame, processor = noise(*size), processor_of(family)
    agent = DesktopAgent(max_pixels=MOST, model_image_size=model_image_size(processor))
    shown = frame.resized(agent.settings.shown_size(*size))
    assert shown.size[0] * shown.size[1] <= MOST
    got = ImageCache(processor).add(shown.png())
    want = ImageCache(processor_of(family, MOST)).add(frame.png())
    assert (got.width, got.height) == shown.size == agent.view_of(*size).model_image_size
    assert got.grid_thw == want.grid_thw
    assert np.array_equal(got.pixel_values, want.pixel_values)


@pytest.mark.parametrize("family", AREAS)
def test_screens_that_are_small_enough_are_sent_as_they_are(family):
    resize = model_image_size(processor_of(family))
    for size, most in (((1024, 768), MOST), (SIZE, None), (SIZE, 1 << 30)):
        agent = DesktopAgent(max_pixels=most, model_image_size=resize)
        assert agent.settings.shown_size(*size) == size
        assert agent.view_of(*size) == DesktopAgent(model_image_size=resize).view_of(*size)


@pytest.mark.parametrize("family", AREAS)
def test_a_maximum_that_the_model_cannot_have_is_refused(family):
    resize = model_image_size(processor_of(family))
    least = 2 * AREAS[family][1]
    with pytest.raises(ConfigError, match=f"agent.max_pixels: must be at least {least} "):
        DesktopAgent(max_pixels=least - 1, model_image_size=resize)
    for size in (SIZE, (3440, 1440), (1080, 1920)):
        shown = DesktopAgent(max_pixels=least, model_image_size=resize).settings.shown_size(*size)
        assert resize(*shown) == shown, "the model's own preprocessing would enlarge it again"


CALL = '<tool_call>\n{"name": "computer_use", "arguments": {"action": %s}}\n</tool_call>'
CLICK, END = CALL % '"left_click", "coordinate": [%d, %d]', CALL % '"terminate", "status": "success"'


@pytest.mark.parametrize(
    ("family", "action_format", "shown", "said", "hit"),
    [
        # 1920x1080 under 1280x720 pixels: 1260x700 in steps of 28 and 1280x704 in steps of 32
        ("Qwen2.5-VL", "qwen25_vl", (1260, 700), (0, 0), (0, 0)),
        ("Qwen2.5-VL", "qwen25_vl", (1260, 700), (1259, 699), (1919, 1079)),
        ("Qwen2.5-VL", "qwen25_vl", (1260, 700), (630, 350), (960, 540)),
        ("Qwen3-VL", "qwen3_vl", (1280, 704), (0, 0), (0, 0)),
        ("Qwen3-VL", "qwen3_vl", (1280, 704), (1000, 1000), (1919, 1079)),
        ("Qwen3-VL", "qwen3_vl", (1280, 704), (250, 750), (480, 810)),
    ],
)
async def test_clicks_in_the_model_s_coordinates_reach_the_desktop_s_pixels(
    family, action_format, shown, said, hit, solve
):
    kept = {}

    async def keep_frame(frame):
        kept[frame.sha256] = frame

    config = AgentConfig(action_format=action_format, prompt_style="full", max_pixels=MOST)
    resize = model_image_size(processor_of(family))
    transcript, endpoint, desktop = await solve(
        [CLICK % said, END], config, desktop=NoisyDesktop(), model_image_size=resize, keep_frame=keep_frame
    )
    assert (transcript.stop_reason, transcript.num_errors, desktop.hits) == ("done", 0, [hit])
    resolution = "1260x700" if action_format == "qwen25_vl" else "1000x1000"
    assert f"resolution is {resolution}." in str(endpoint.asked[0]["messages"])
    for asked, step in zip(endpoint.asked, transcript.steps, strict=True):
        (url,) = [part["image_url"]["url"] for part in asked["messages"][-1]["content"] if part["type"] == "image_url"]
        sent = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))))
        assert kept[step.frame_sha256].size == shown
        assert np.array_equal(sent, kept[step.frame_sha256].rgb()), "what is kept is what the model saw"


@pytest.mark.parametrize("name", formats.available_formats())
async def test_every_format_reaches_the_same_place_on_a_scaled_screen(name, solve):
    action_format, target = formats.get(name), Point(1530, 333, screen_px(*SIZE))
    agent = DesktopAgent(action_format=name, max_pixels=MOST)
    said = [action_format.emit([op], agent.view_of(*SIZE)) for op in (Click(target), Done())]
    config = AgentConfig(action_format=name, max_pixels=MOST)
    transcript, _, desktop = await solve(said, config, desktop=NoisyDesktop())
    assert transcript.num_errors == 0
    assert np.abs(np.subtract(desktop.hits[-1], (1530, 333))).max() <= 2, "a unit of 0..1000 is about two pixels"


async def test_zooming_shows_the_pixels_of_the_desktop_and_not_of_the_scaled_screen(solve):
    said = '{"op":"zoom","x":0,"y":0,"x2":500,"y2":500}'
    config = AgentConfig(action_format="deskhand_json", max_pixels=MOST)
    transcript, endpoint, _ = await solve([said, '{"op":"done"}'], config, desktop=NoisyDesktop())
    assert transcript.num_errors == 0
    parts = endpoint.asked[-1]["messages"][-1]["content"]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    screen, closer = (np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))) for url in urls)
    assert screen.shape == closer.shape
    zoom = Zoom(Point(0, 0, screen_px(*SIZE)), Point(959, 539, screen_px(*SIZE)))
    shown = (screen.shape[1], screen.shape[0])
    assert np.array_equal(closer, crop_and_enlarge(noise(*SIZE), zoom, shown).rgb())
