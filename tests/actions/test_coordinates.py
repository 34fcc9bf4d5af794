"""Where points land: in range exactly, the far edge on the last pixel, and beyond it nowhere."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deskhand.actions.ops import REL_1, REL_1000, Point, Space, in_space, screen_px, to_screen_px
from deskhand.errors import AgentError

SCREENS = [(1920, 1080), (1366, 768), (640, 480), (1001, 999), (64, 48), (1, 1)]
SPACES = {
    "rel_1": REL_1,
    "rel_1000": REL_1000,
    "small image": screen_px(1000, 700),
    "large image": screen_px(3840, 2176),
    "resized by a vision model": screen_px(1932, 1092),
}
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
every_screen = pytest.mark.parametrize("size", SCREENS, ids=str)
sides = st.integers(1, 4000)


def last(space: Space) -> tuple[float, float]:
    """The largest place: of pixels the last one, of a scale its far edge."""
    return (space.width - 1, space.height - 1) if space.kind == "pixels" else (space.width, space.height)


@every_space
@every_screen
def test_the_first_and_the_last_pixel_are_reached(space, size):
    assert to_screen_px(Point(0, 0, space), *size) == (0, 0)
    far = to_screen_px(Point(*last(space), space), *size)
    if space.kind == "relative" or (space.width >= size[0] and space.height >= size[1]):
        assert far == (size[0] - 1, size[1] - 1)
    else:
        assert all(0 <= at < side for at, side in zip(far, size, strict=True))


@every_space
@every_screen
@given(st.floats() | st.integers(-(10**30), 10**30), st.booleans())
@settings(max_examples=30, deadline=None, database=None)
def test_a_place_is_within_the_screen_or_an_error_and_never_moved(space, size, value, across):
    point = Point(value, 0, space) if across else Point(0, value, space)
    extent, side = (space.width, size[0]) if across else (space.height, size[1])
    inside = math.isfinite(value) and (0 <= value < extent if space.kind == "pixels" else 0 <= value <= extent)
    if not inside:
        with pytest.raises(AgentError):
            to_screen_px(point, *size)
        with pytest.raises(AgentError):
            in_space(point, screen_px(*size))
    else:
        at = to_screen_px(point, *size)[0 if across else 1]
        place = (
            Fraction(value) / Fraction(extent)
            if space.kind == "relative"
            else (Fraction(value) + Fraction(1, 2)) / Fraction(extent)
        )
        assert abs(Fraction(at) + Fraction(1, 2) - place * side) <= 1


@every_space
@pytest.mark.parametrize("step", [1, -1])
def test_the_smallest_step_beyond_an_edge_is_an_error(space, step):
    beyond = {1: [space.width, space.height], -1: [0.0, 0.0]}[step]
    toward = math.inf * step
    for axis in (0, 1):
        place = [0.0, 0.0]
        outside = step > 0 and space.kind == "pixels"
        place[axis] = beyond[axis] if outside else math.nextafter(beyond[axis], toward)
        with pytest.raises(AgentError, match=f"{'xy'[axis]}=.* is off the screen"):
            to_screen_px(Point(*place, space), 1920, 1080)


@given(st.data(), sides, sides)
@settings(deadline=None, database=None)
def test_a_pixel_of_a_finer_image_round_trips(data, side, finer):
    finer = max(side, finer)
    at = data.draw(st.integers(0, side - 1))
    said = in_space(Point(at, 0, screen_px(side, 1)), screen_px(finer, 1))
    assert to_screen_px(said, side, 1) == (at, 0)


@every_space
@given(st.data(), sides)
@settings(max_examples=50, deadline=None, database=None)
def test_a_place_further_right_never_lands_further_left(space, data, side):
    along = st.integers(0, int(last(space)[0])) if space.width > 1 else st.floats(0, 1)
    first, second = sorted([data.draw(along), data.draw(along)])
    left, right = (to_screen_px(Point(value, 0, space), side, 9)[0] for value in (first, second))
    assert left <= right
    if space.kind == "pixels" and side >= space.width and first < second:
        assert left < right


@pytest.mark.parametrize(
    ("value", "space", "pixel"),
    [(0.5, REL_1, 960), (1.0, REL_1, 1919), (500, REL_1000, 960), (999, REL_1000, 1918), (1000, REL_1000, 1919),
     (966, screen_px(1932, 9), 960), (1931, screen_px(1932, 9), 1919),
     (683, screen_px(1366, 9), 960)],
)  # fmt: skip
def test_places_that_the_field_writes_land_on_a_screen_of_1920(value, space, pixel):
    assert to_screen_px(Point(value, 0, space), 1920, 1080)[0] == pixel
