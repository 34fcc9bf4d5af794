"""Images of the conversation. Invariant: an image is named by the SHA-256 of its RGB pixels, and the same pixels always give
the same prepared tensor, which is that of the checkpoint's own image processor (`patches`).

The name is that of `desktop.base.Frame.sha256`: SHA-256 of the raw `uint8[H, W, 3]` bytes. Whatever the encoding (PNG of any mode,
JPEG, WebP), what counts is the pixels; transparency is laid over white, 16-bit channels keep their high byte. Decoding,
hashing and preprocessing take milliseconds and are blocking: call `ImageCache` from a worker thread.
"""

from __future__ import annotations

import binascii
import hashlib
import io
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from PIL import Image

from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.recorder.fast_patches import PatchExtractor, StoredPatches
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Checksum, PreparedImage

FORMATS = ("PNG", "JPEG", "WEBP")
MEDIA_TYPES = ("image/png", "image/jpeg", "image/jpg", "image/webp")


PREPARED_BYTES = 512 << 20
"""Of prepared images, kept by default (a screenshot of 1280x720 takes 2.6 MiB); others are prepared again from their encoded
form."""
REMEMBERED = 1 << 17
"""Names of contents that a cache remembers; a content beyond is met as if it were new."""


def read_data_uri(url: str, param: str = "image_url.url") -> bytes:
    """The bytes of a base64 data URI. Raises `RequestRefused` for anything else, remote addresses among them."""
    if not url.startswith("data:"):
        raise InvalidRequestError(
            "images must be base64 data URIs; remote addresses are not fetched", param=param, code="remote_image"
        )
    head, comma, body = url[5:].partition(",")
    media_type, *options = head.lower().split(";")
    if not comma or media_type not in MEDIA_TYPES or options[-1:] != ["base64"]:
        raise InvalidRequestError(
            f"an image must start with data:image/png;base64, (or jpeg, webp), not data:{head[:40]!r}",
            param=param,
            code="invalid_image",
        )
    try:
        return binascii.a2b_base64(body, strict_mode=True)
    except ValueError:
        raise InvalidRequestError(
            "the image's data URI is not valid base64", param=param, code="invalid_image"
        ) from None


def decode_rgb(encoded: bytes, *, max_pixels: int, param: str | None = None) -> Image.Image:
    """Decode one still image to mode RGB. Raises `RequestRefused` when it is not one, is truncated or has too many pixels."""
    try:
        image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        if image.width * image.height > max_pixels:
            raise InvalidRequestError(
                f"the image is {image.width}x{image.height}; at most {max_pixels} pixels are taken",
                param=param,
                code="image_too_large",
            )
        if getattr(image, "n_frames", 1) > 1:
            raise InvalidRequestError(
                "animated images are not taken; send one frame", param=param, code="invalid_image"
            )
        image.load()
        return _to_rgb(image)
    except InvalidRequestError:
        raise
    except Exception as error:  # decoders raise many kinds on hostile bytes
        raise InvalidRequestError(f"the image cannot be decoded: {error}", param=param, code="invalid_image") from None


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


def pixels_sha256(image: Image.Image) -> str:
    """SHA-256 (hex) of the raw RGB bytes of an image in mode RGB."""
    return hashlib.sha256(image.tobytes()).hexdigest()


class ImageStore(Protocol):
    """What takes the images of requests: `ImageCache`, which prepares them, and `relay.KeptImages`, which keeps them."""

    def add_data_uri(self, url: str, *, param: str = ...) -> Any:
        """Something with the image's `sha256`. Raises `RequestRefused`."""
        ...


class ImageCache(Mapping[str, PreparedImage]):
    """Prepares each image once per content and keeps the most recently used ones; thread-safe.

    As a mapping it gives the `PreparedImage` of a hash, preparing it anew when it was dropped: from `fetch(sha256)`, which returns
    the encoded bytes as received (or raises `KeyError` or an `InfrastructureError`), or without `fetch` from the encoded bytes
    kept in memory.
    `on_new(sha256, encoded)` is called (in the calling thread, before `add` returns) for each content that this cache has not
    seen, now and then for one that it has; what it raises becomes an `InfrastructureError`.
    """

    def __init__(
        self,
        image_processor: Any,
        *,
        fetch: Callable[[str], bytes] | None = None,
        on_new: Callable[[str, bytes], None] | None = None,
        prepared_bytes: int = PREPARED_BYTES,
        encoded_bytes: int = 256 << 20,
        max_pixels: int = 4096 * 4096,
        max_encoded_bytes: int = 32 << 20,
    ) -> None:
        self.processor = image_processor
        self.merge_size = int(getattr(image_processor, "merge_size", 0))
        if self.merge_size < 1:
            raise ConfigError(
                "preprocessor_config.json has no merge_size; give the image processor of a Qwen-VL checkpoint"
            )
        self._patches = PatchExtractor(image_processor)
        self.max_pixels, self.max_encoded_bytes = max_pixels, max_encoded_bytes
        self._fetch, self._on_new = fetch, on_new
        self._prepared = _Budget(prepared_bytes, lambda image: image.pixel_values.nbytes)
        self._encoded = _Budget(encoded_bytes, len)
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._outlines: OrderedDict[str, PreparedImage] = OrderedDict()
        """Images with the shape of their pixels in place of the pixels."""
        self._working: dict[str, Future[PreparedImage]] = {}
        self._lock = threading.Lock()

    def add_data_uri(self, url: str, *, param: str = "image_url.url") -> PreparedImage:
        """As `add`, for a base64 data URI; one that was seen before is not decoded again."""
        digest = hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()
        known = self._known(digest)
        if known is not None:
            return known
        prepared = self.add(read_data_uri(url, param), param=param)
        with self._lock:
            _put_newest(self._names, digest, prepared.sha256)
        return prepared

    def add(self, encoded: bytes, *, param: str | None = None) -> PreparedImage:
        """The prepared image of these encoded bytes. Raises `RequestRefused` when they are not an image that can be taken."""
        if len(encoded) > self.max_encoded_bytes:
            raise InvalidRequestError(
                f"the image has {len(encoded)} bytes; at most {self.max_encoded_bytes} are taken",
                param=param,
                code="image_too_large",
            )
        digest = hashlib.sha256(encoded).digest()
        known = self._known(digest)
        if known is not None:
            return known
        rgb = decode_rgb(encoded, max_pixels=self.max_pixels, param=param)
        name = pixels_sha256(rgb)
        prepared = self._prepare_once(name, lambda: rgb)
        self._remember(digest, name, encoded)  # after it: what the checkpoint cannot take is not kept
        return prepared

    def _known(self, digest: bytes) -> PreparedImage | None:
        with self._lock:
            name = self._names.get(digest)
            return self._at_hand(name) if name else None

    def __getitem__(self, sha256: str) -> PreparedImage:
        """The prepared image of this hash. Raises `KeyError` if never seen, `RecordError` if its bytes are lost or wrong."""
        with self._lock:
            prepared = self._at_hand(sha256)
        return prepared or self._prepare_again(sha256)

    def _at_hand(self, name: str) -> PreparedImage | None:
        """The image if it is in memory, or with pixels that are made when an engine asks for them. Call it with the lock held.

        An engine that has an image's features does not ask, so rendering a long conversation prepares nothing anew.
        """
        prepared = self._prepared.get(name)
        if (
            prepared is None
            and name in self._outlines
            and (self._fetch is not None or self._encoded.get(name) is not None)
        ):
            outline = self._outlines[name]
            later = LazyPixels(outline.pixel_values, lambda: self._prepare_again(name).pixel_values)
            prepared = replace(outline, pixel_values=later)
        return prepared

    def _prepare_again(self, name: str) -> PreparedImage:
        return self._prepare_once(name, lambda: self._decode_again(name))

    def __contains__(self, sha256: object) -> bool:
        """Whether `self[sha256]` gives an image. Raises `RecordError` when what is stored under that name is another."""
        if sha256 in self._seen or self._fetch is None or not isinstance(sha256, str):
            return sha256 in self._seen
        try:
            return self[sha256].sha256 == sha256
        except (KeyError, InfrastructureError):
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._seen))

    def __len__(self) -> int:
        return len(self._seen)

    def _remember(self, digest: bytes, name: str, encoded: bytes) -> None:
        if self._on_new is not None and name not in self._seen:
            try:
                self._on_new(name, encoded)
            except Exception as error:  # whatever the storage raises, the image is not safely stored
                raise InfrastructureError(f"image {name[:12]} cannot be stored: {error}") from error
        with self._lock:
            _put_newest(self._names, digest, name)
            _put_newest(self._seen, name, None)
            if self._fetch is None:
                self._encoded.put(name, encoded)

    def _decode_again(self, sha256: str) -> Image.Image:
        if self._fetch is not None:
            encoded = self._fetch(sha256)
        else:
            with self._lock:
                encoded = self._encoded.get(sha256)
            if encoded is None and sha256 not in self._seen:
                raise KeyError(sha256)
            if encoded is None:
                raise RecordError(
                    "image_lost",
                    f"image {sha256[:12]} was dropped from memory; give ImageCache a fetch function or more room",
                )
        try:
            rgb = decode_rgb(encoded, max_pixels=self.max_pixels)
        except InvalidRequestError as error:
            raise RecordError("image_changed", f"the stored bytes of image {sha256[:12]}: {error}") from error
        if pixels_sha256(rgb) != sha256:
            raise RecordError(
                "image_changed", f"the stored bytes of image {sha256[:12]} have other pixels than were recorded"
            )
        with self._lock:
            _put_newest(self._seen, sha256, None)
        return rgb

    def _prepare_once(self, name: str, decode: Callable[[], Image.Image]) -> PreparedImage:
        """Prepare an image unless another thread is at it; then wait for that one."""
        with self._lock:
            prepared = self._prepared.get(name)
            if prepared is not None:
                return prepared
            future = self._working.get(name)
            mine = future is None
            if future is None:
                future = self._working[name] = Future()
        if not mine:
            return future.result()
        try:
            prepared = self._preprocess(name, decode(), self._checksum(name))
            with self._lock:
                self._prepared.put(name, prepared)
                _put_newest(self._outlines, name, replace(prepared, pixel_values=prepared.pixel_values.shape))
            future.set_result(prepared)
            return prepared
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._working[name]

    def _checksum(self, name: str) -> Checksum:
        """That of the values that were first made of this image, whoever prepared it then."""
        with self._lock:
            outline = self._outlines.get(name)
        return outline.checksum if outline is not None and outline.checksum is not None else Checksum()

    def _preprocess(self, name: str, rgb: Image.Image, checksum: Checksum) -> PreparedImage:
        try:
            kept, grid = self._patches.keep(rgb)
        except ValueError as error:
            raise InvalidRequestError(
                f"the checkpoint cannot take a {rgb.width}x{rgb.height} image: {error}", code="invalid_image"
            ) from None
        patches = math.prod(grid)
        values = StoredPatches(self._patches.lookup, kept, checksum)
        if len(values) != patches or patches % self.merge_size**2:
            raise RecordError("grid", f"image {name[:12]}: {len(values)} patches do not make a grid of {grid}")
        return PreparedImage(name, values, grid, patches // self.merge_size**2, rgb.width, rgb.height, checksum)


def _put_newest(names: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    names[key] = value
    names.move_to_end(key)
    if len(names) > REMEMBERED:
        names.popitem(last=False)


class LazyPixels:
    """Pixels that `numpy.asarray` makes when it is called: float32 of `shape`."""

    def __init__(self, shape: tuple[int, ...], make: Callable[[], np.ndarray]) -> None:
        self.shape, self._make = shape, make

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._make(), dtype=dtype)


class _Budget:
    """A mapping that drops its least recently used values beyond `limit` bytes; the newest is always kept."""

    def __init__(self, limit: int, size: Callable[[Any], int]) -> None:
        self.limit, self.size, self.used = limit, size, 0
        self.values: OrderedDict[str, Any] = OrderedDict()

    def get(self, key: str) -> Any:
        if key in self.values:
            self.values.move_to_end(key)
            return self.values[key]
        return None

    def put(self, key: str, value: Any) -> None:
        if key in self.values:
            self.used -= self.size(self.values.pop(key))
        self.values[key] = value
        self.used += self.size(value)
        while self.used > self.limit and len(self.values) > 1:
            self.used -= self.size(self.values.popitem(last=False)[1])
