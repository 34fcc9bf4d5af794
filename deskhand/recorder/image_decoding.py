"""Decoding of the images in requests to `uint8[H, W, 3]`, and the hash that names them.

Used by the image cache, the recording proxy, imports and the viewer; start with `decode_rgb`. PNG, JPEG and WebP are
decoded. Transparency is composited on white; 16-bit channels keep their high byte.

Screenshots are PNG with 8-bit RGB. Where `imagecodecs` is installed (`deskhand[images]`), libpng decodes them, in a
third of Pillow's time (docs/decisions/0021-png-decoder.md). Pillow decodes all others, and what libpng refuses.
"""

from __future__ import annotations

import binascii
import hashlib
import io

import numpy as np
from PIL import Image

from deskhand.recorder.request_errors import InvalidRequestError

try:
    from imagecodecs import png_decode
except ImportError:
    png_decode = None

FORMATS = ("PNG", "JPEG", "WEBP")
MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp")
_DEPTH_AND_COLOR_TYPE = slice(24, 26)
"""Bytes of a PNG file."""
_RGB8 = bytes((8, 2))


def read_data_uri(url: str, param: str = "image_url.url") -> bytes:
    """Return the bytes of a base64 data URI. Raises `InvalidRequestError` for any other URL."""
    if not url.startswith("data:"):
        raise InvalidRequestError(
            "images must be base64 data URIs; remote URLs are not fetched", param=param, code="remote_image"
        )
    head, comma, body = url[5:].partition(",")
    media_type, *options = head.lower().split(";")
    if not comma or media_type not in MEDIA_TYPES or options[-1:] != ["base64"]:
        raise InvalidRequestError(
            f"an image must start with data:image/png;base64, (or jpeg, webp), got data:{head[:40]!r}",
            param=param,
            code="invalid_image",
        )
    try:
        return binascii.a2b_base64(body, strict_mode=True)
    except ValueError:
        raise InvalidRequestError(
            "the image's data URI is not valid base64", param=param, code="invalid_image"
        ) from None


def decode_rgb(encoded: bytes, *, max_pixels: int, param: str | None = None) -> np.ndarray:
    """Decode one still image to uint8[H, W, 3].

    Raises `InvalidRequestError` if it is invalid, truncated or too large.
    """
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        if image.width * image.height > max_pixels:
            raise InvalidRequestError(
                f"the image is {image.width}x{image.height}; the maximum is {max_pixels} pixels",
                param=param,
                code="image_too_large",
            )
        if getattr(image, "n_frames", 1) > 1:
            raise InvalidRequestError(
                "animated images are not supported; send one frame", param=param, code="invalid_image"
            )
        rgb_HWC = _decode_png(encoded, image)
        if rgb_HWC is None:
            image.load()
            rgb_HWC = np.asarray(_to_rgb(image))
        return rgb_HWC
    except InvalidRequestError:
        raise
    except Exception as error:  # decoders raise many exception types on invalid bytes
        raise InvalidRequestError(f"the image cannot be decoded: {error}", param=param, code="invalid_image") from None


def _decode_png(encoded: bytes, image: Image.Image) -> np.ndarray | None:
    """Return the pixels of an 8-bit RGB PNG, whose header `image` has; None if Pillow has to decode it."""
    is_plain = image.format == "PNG" and encoded[_DEPTH_AND_COLOR_TYPE] == _RGB8 and "transparency" not in image.info
    if png_decode is None or not is_plain:
        return None
    try:
        return png_decode(encoded)
    except (RuntimeError, ValueError):  # Pillow says what is wrong
        return None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        high_bytes = (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
        return Image.fromarray(high_bytes).convert("RGB")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    return image.convert("RGB")


def pixels_sha256(rgb_HWC: np.ndarray) -> str:
    """Return the SHA-256 (hex) of the raw bytes of pixels, uint8[H, W, 3]."""
    return hashlib.sha256(np.ascontiguousarray(rgb_HWC).data).hexdigest()
