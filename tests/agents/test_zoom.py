"""What a model zooms in on is shown to it: cut from the frame, enlarged, behind the next screenshot, and kept."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from deskhand.actions import formats
from deskhand.actions.ops import REL_1000, Point, Zoom, screen_px
from deskhand.agents.desktop_agent import AgentConfig
from deskhand.agents.zoom import crop_and_enlarge
from deskhand.desktop.base import Frame
from deskhand.errors import AgentError

PX = screen_px(64, 48)


def checkered() -> Frame:
    """Every pixel differs from all others."""
    pixels = np.zeros((48, 64, 4), dtype=np.uint8)
    pixels[:, :, 0], pixels[:, :, 1] = np.arange(64)[None, :], np.arange(48)[:, None]
    pixels[:, :, 2] = 200
    return Frame(pixels, 1, "x", 1.0, "quiet", None, (0, 0))


def at(x, y, space=PX):
    return Point(x, y, space)


def test_the_rectangle_is_enlarged_to_what_fits_the_screen():
    closer = crop_and_enlarge(checkered(), Zoom(at(8, 12), at(23, 23)))
    assert closer.size == (64, 48)
    assert abs(closer.rgb()[0, 0].astype(int) - [200, 12, 8]).max() <= 1
    assert abs(closer.rgb()[-1, -1].astype(int) - [200, 23, 23]).max() <= 1
    assert closer.sha256 != checkered().sha256


def test_what_is_left_of_the_frame_is_black_so_that_it_is_always_as_large_as_the_screen():
    for zoom, width, height in (
        (Zoom(at(0, 42), at(63, 47)), 64, 6),
        (Zoom(at(2, 0), at(3, 47)), 2, 48),
        (Zoom(at(5, 0), at(5, 47)), 1, 48),
    ):
        closer = crop_and_enlarge(checkered(), zoom)
        assert closer.size == (64, 48)
        assert (closer.rgb()[:height, :width, 0] == 200).all()
        assert closer.rgb().astype(bool)[:, :, 0].sum() == width * height


def test_corners_may_be_given_in_any_order_and_the_whole_screen_is_itself():
    frame = checkered()
    several = [Zoom(at(8, 12), at(23, 23)), Zoom(at(23, 23), at(8, 12)), Zoom(at(23, 12), at(8, 23))]
    assert len({crop_and_enlarge(frame, zoom).sha256 for zoom in several}) == 1
    assert crop_and_enlarge(frame, Zoom(at(0, 0, REL_1000), at(1000, 1000, REL_1000))).sha256 == frame.sha256
    one = crop_and_enlarge(frame, Zoom(at(63, 47), at(63, 47))).rgb()
    assert {tuple(pixel) for row in one[:, :48] for pixel in row} == {(200, 47, 63)}


def test_a_corner_off_the_screen_is_an_agent_error():
    with pytest.raises(AgentError, match="off the screen"):
        crop_and_enlarge(checkered(), Zoom(at(0, 0), at(64, 47)))


async def asked_after(solve, replies, config):
    """(texts and images of the last request's user turns, transcript, kept frames)."""
    kept = {}

    async def keep_frame(frame):
        kept[frame.sha256] = frame.png()

    transcript, endpoint, _ = await solve(replies, config, keep_frame=keep_frame)
    turns = [message["content"] for message in endpoint.asked[-1]["messages"] if message["role"] == "user"]
    images = [[base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in parts[:-1]] for parts in turns]
    return [parts[-1]["text"] for parts in turns], images, transcript, kept


REPLIES = {
    "deskhand_json": (
        '[{"op":"zoom","x":0,"y":0,"x2":500,"y2":500},{"op":"zoom","x":0,"y":0,"x2":1000,"y2":1000}]',
        '{"op":"done"}',
    ),
    "anthropic_20251124": (
        '[{"action": "zoom", "region": [0, 0, 32, 24]}, {"action": "zoom", "region": [0, 0, 64, 48]}]',
        '{"type": "text", "text": ""}',
    ),
}


@pytest.mark.parametrize("name", REPLIES)
async def test_what_was_zoomed_in_on_stands_behind_the_next_screenshot_and_is_kept(name, solve):
    config = AgentConfig(action_format=name)
    texts, images, transcript, kept = await asked_after(solve, REPLIES[name], config)
    assert transcript.num_errors == 0
    assert [len(shown) for shown in images] == [1, 3]
    assert texts[1] == f"{texts[0]}\nBehind the screen: what you zoomed in on."
    assert len(texts) == 2
    screen, quarter, whole = (np.asarray(Image.open(io.BytesIO(png)).convert("RGB")) for png in images[1])
    assert np.array_equal(screen, whole)
    assert quarter.shape == screen.shape
    assert not np.array_equal(screen, quarter)
    assert set(images[1]) <= set(kept.values())


async def test_zooming_with_noise_images_shows_noise(solve):
    _, images, _, _ = await asked_after(solve, REPLIES["deskhand_json"], AgentConfig(noise_images=True))
    assert images[1][0] == images[1][2]
    assert images[1][0] != images[0][0]


def test_every_format_that_offers_a_zoom_has_it_tested_here():
    offering = {name for name in formats.available_formats() if formats.get(name).supported_ops[Zoom].kind != "absent"}
    assert offering == set(REPLIES)
