"""Screenshots of remote machines: what has the wrong size or depth is refused before its pixels are decoded."""

from __future__ import annotations

import pytest
from hostile_files import plain_image, png_head
from PIL import ImageFile

from deskhand.desktop.remote.screenshots import MAX_PIXELS, decode_screenshot
from deskhand.errors import FrameError

WRONG = {
    "another size": (png_head(8192, 8192), (640, 480), "8192x8192 pixels, expected 640x480"),
    "another size, JPEG": (plain_image(640, 481, "JPEG"), (640, 480), "640x481 pixels, expected 640x480"),
    "too large": (png_head(8192, 8192), None, f"too large; maximum: {MAX_PIXELS}"),
    "16 bits": (png_head(640, 480, 16), (640, 480), "16 bits per channel"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_image_is_refused_before_it_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(image: ImageFile.ImageFile) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    data, size, expected = WRONG[name]
    with pytest.raises(FrameError, match=expected):
        decode_screenshot(data, size, "GET /screenshot")


def test_a_short_file_with_both_ends_of_a_png_is_truncated() -> None:
    with pytest.raises(FrameError, match="truncated"):
        decode_screenshot(b"\x89PNG\r\n\x1a\n\0\0\0\0IEND\xae\x42\x60\x82", (8, 8), "GET /screenshot")
