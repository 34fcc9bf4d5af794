"""Images of conversations: decoding, hashing and preprocessing, with a cache.

Used by the recorder's APIs and by runners as `ImageCache`. Images are named by the SHA-256 of their raw
`uint8[H, W, 3]` bytes, like `desktop.base.Frame.sha256`, whatever their encoding (`recorder.image_decoding`). Calls
block for milliseconds: use a worker thread.

Screens of desktops in this process are not encoded: a runner adds their pixels (`add_pixels`), and its agent's messages
contain their names (`NamedImages`).

Invariant: equal pixels give the same prepared tensor, that of the checkpoint's own image processor.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.recorder.fast_patches import PatchExtractor
from deskhand.recorder.image_decoding import decode_rgb, pixels_sha256, read_data_uri
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Checksum, PatchLookup, PreparedImage, StoredPixels

IMAGE = "deskhand-image:"
"""Prefix of the names of stored images where a message has an image's URL."""
_NAME = re.compile("[0-9a-f]{64}")
PREPARED_BYTES = 512 << 20
"""Default size of the cache of prepared images (2.6 MiB for a 1280x720 screenshot)."""
REMEMBERED = 1 << 17
"""Maximum number of image names that a cache remembers."""


class ImageStore(Protocol):
    """Receiver of the images of requests: `ImageCache` or `recording_proxy.StoredImages`."""

    def add_data_uri(self, url: str, *, param: str = ...) -> Any:
        """Add an image and return an object with its `sha256`. Raises `InvalidRequestError`."""
        ...


class ImageCache(Mapping[str, PreparedImage]):
    """Prepares each image once and caches the most recently used ones; thread-safe.

    As a mapping it returns the `PreparedImage` of a hash, and prepares it again if it was evicted.

    Args:
        fetch: Returns the encoded bytes of a hash, or its pixels `uint8[H, W, 3]`; raises `KeyError` or
            `InfrastructureError`. Without it, encoded bytes are kept in memory.
        on_new: Called as `on_new(sha256, encoded)` in the calling thread for each new image (rarely for a known one);
            its exceptions become `InfrastructureError`.
    """

    def __init__(
        self,
        image_processor: Any,
        *,
        fetch: Callable[[str], bytes | np.ndarray] | None = None,
        on_new: Callable[[str, bytes], None] | None = None,
        prepared_bytes: int = PREPARED_BYTES,
        encoded_bytes: int = 256 << 20,
        max_pixels: int = 4096 * 4096,
        max_encoded_bytes: int = 32 << 20,
    ) -> None:
        self.processor = image_processor
        self.merge_size = int(getattr(image_processor, "merge_size", 0))
        if self.merge_size < 1:
            raise ConfigError("preprocessor_config.json: merge_size is missing; use a Qwen-VL checkpoint")
        self._patches = PatchExtractor(image_processor)
        self.max_pixels, self.max_encoded_bytes = max_pixels, max_encoded_bytes
        self._fetch, self._on_new = fetch, on_new
        self._prepared = LruCache(prepared_bytes, lambda image: image.pixel_values.nbytes)
        self._encoded = LruCache(encoded_bytes, len)
        self._names: OrderedDict[bytes, str] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._outlines: OrderedDict[str, PreparedImage] = OrderedDict()
        """Images with the shape of their pixels instead of the pixels."""
        self._working: dict[str, Future[PreparedImage]] = {}
        self._lock = threading.Lock()

    def add_data_uri(self, url: str, *, param: str = "image_url.url") -> PreparedImage:
        """Like `add`, for a base64 data URI; a known one is not decoded again."""
        digest = hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()
        known = self._known(digest)
        if known is not None:
            return known
        encoded = read_data_uri(url, param)
        self._check_length(encoded, param)
        return self._decode_and_add(digest, encoded, param)

    def add(self, encoded: bytes, *, param: str | None = None) -> PreparedImage:
        """Return the prepared image of encoded bytes. Raises `InvalidRequestError` if it is not a supported image."""
        self._check_length(encoded, param)
        digest = hashlib.sha256(encoded).digest()
        return self._known(digest) or self._decode_and_add(digest, encoded, param)

    def add_pixels(self, sha256: str, rgb_HWC: np.ndarray, encode: Callable[[], bytes]) -> PreparedImage:
        """Return the prepared image of pixels of this process, uint8[H, W, 3], under their hash, which is not checked.

        `encode` returns them as PNG; it is called only where encoded bytes are stored. Raises like `add`.
        """
        with self._lock:
            known = self._cached(sha256) if sha256 in self._seen else None
        if known is not None:
            return known
        prepared = self._prepare_once(sha256, lambda: rgb_HWC)
        self._remember(None, sha256, encode)
        return prepared

    def release(self, names: Iterable[str]) -> None:
        """Drop the pixels of images that are hardly used any more; who reads them prepares them again."""
        with self._lock:
            for name in names:
                if self._is_stored(name):
                    self._prepared.drop(name)

    def _check_length(self, encoded: bytes, param: str | None) -> None:
        if len(encoded) > self.max_encoded_bytes:
            raise InvalidRequestError(
                f"the image has {len(encoded)} bytes; the maximum is {self.max_encoded_bytes}",
                param=param,
                code="image_too_large",
            )

    def _decode_and_add(self, digest: bytes, encoded: bytes, param: str | None) -> PreparedImage:
        rgb_HWC = decode_rgb(encoded, max_pixels=self.max_pixels, param=param)
        name = pixels_sha256(rgb_HWC)
        prepared = self._prepare_once(name, lambda: rgb_HWC)
        self._remember(digest, name, lambda: encoded)  # last, so that images the checkpoint rejects are not stored
        return prepared

    def _known(self, digest: bytes) -> PreparedImage | None:
        with self._lock:
            name = self._names.get(digest)
            return self._cached(name) if name else None

    def __getitem__(self, sha256: str) -> PreparedImage:
        """Return the prepared image of a hash. Raises `KeyError` if it is unknown, `RecordError` if its bytes are lost
        or altered."""
        with self._lock:
            prepared = self._cached(sha256)
        return prepared or self._prepare_again(sha256)

    def _cached(self, name: str) -> PreparedImage | None:
        """Return the image from memory, or with lazily computed pixels; requires the lock. An engine that has an
        image's features never reads the pixels, so long conversations prepare nothing again."""
        prepared = self._prepared.get(name)
        if prepared is None and name in self._outlines and self._is_stored(name):
            outline = self._outlines[name]
            pixels = LazyPixels(
                self._patches.lookup, outline.pixel_values, lambda: self._prepare_again(name).pixel_values
            )
            prepared = replace(outline, pixel_values=pixels)
        return prepared

    def _is_stored(self, name: str) -> bool:
        return self._fetch is not None or self._encoded.get(name) is not None

    def _prepare_again(self, name: str) -> PreparedImage:
        return self._prepare_once(name, lambda: self._decode_again(name))

    def __contains__(self, sha256: object) -> bool:
        """Return whether `self[sha256]` exists. Raises `RecordError` if the stored image has other pixels."""
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

    def _remember(self, digest: bytes | None, name: str, encode: Callable[[], bytes]) -> None:
        """Store an image, and that `digest` is its encoded form."""
        if self._on_new is not None and name not in self._seen:
            try:
                self._on_new(name, encode())
            except Exception as error:  # a user's callback may raise anything
                raise InfrastructureError(f"image {name[:12]}: cannot be stored ({error})") from error
        encoded = encode() if self._fetch is None else b""
        with self._lock:
            if digest is not None:
                _put_newest(self._names, digest, name)
            _put_newest(self._seen, name, None)
            if self._fetch is None:
                self._encoded.put(name, encoded)

    def _decode_again(self, sha256: str) -> np.ndarray:
        if self._fetch is not None:
            found = self._fetch(sha256)
        else:
            with self._lock:
                found = self._encoded.get(sha256)
            if found is None and sha256 not in self._seen:
                raise KeyError(sha256)
            if found is None:
                raise RecordError(
                    "image_lost", f"image {sha256[:12]} was evicted; pass fetch or a larger encoded_bytes to ImageCache"
                )
        if not isinstance(found, np.ndarray):
            try:
                found = decode_rgb(found, max_pixels=self.max_pixels)
            except InvalidRequestError as error:
                raise RecordError("image_changed", f"the stored bytes of image {sha256[:12]}: {error}") from error
        if pixels_sha256(found) != sha256:
            raise RecordError(
                "image_changed", f"the stored bytes of image {sha256[:12]} have other pixels than recorded"
            )
        with self._lock:
            _put_newest(self._seen, sha256, None)
        return found

    def _prepare_once(self, name: str, decode: Callable[[], np.ndarray]) -> PreparedImage:
        """Prepare an image, or wait for another thread that is preparing it."""
        with self._lock:
            prepared = self._prepared.get(name)
            if prepared is not None:
                return prepared
            future = self._working.get(name)
            is_owner = future is None
            if future is None:
                future = self._working[name] = Future()
        if not is_owner:
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
        """Return the checksum of the values first computed for this image."""
        with self._lock:
            outline = self._outlines.get(name)
        return outline.checksum if outline is not None and outline.checksum is not None else Checksum()

    def _preprocess(self, name: str, rgb_HWC: np.ndarray, checksum: Checksum) -> PreparedImage:
        height, width = rgb_HWC.shape[:2]
        try:
            values, grid = self._patches.prepare(rgb_HWC, checksum)
        except ValueError as error:
            raise InvalidRequestError(
                f"the checkpoint does not support {width}x{height} images: {error}", code="invalid_image"
            ) from None
        count = math.prod(grid)
        if len(values) != count or count % self.merge_size**2:
            raise RecordError("grid", f"image {name[:12]}: {len(values)} patches do not fit the grid {grid}")
        return PreparedImage(name, values, grid, count // self.merge_size**2, width, height, checksum)


class NamedImages:
    """`ImageStore` for clients in this process: over an `ImageCache`, and names of its images instead of data URIs."""

    def __init__(self, images: ImageCache) -> None:
        self._images = images

    def add_data_uri(self, url: str, *, param: str = "image_url.url") -> PreparedImage:
        """Like `ImageCache.add_data_uri`. Raises `InvalidRequestError` for a name without an image."""
        if not url.startswith(IMAGE):
            return self._images.add_data_uri(url, param=param)
        name = url.removeprefix(IMAGE)
        if _NAME.fullmatch(name):
            with contextlib.suppress(KeyError):
                return self._images[name]
        raise InvalidRequestError("no image has this name", param=param, code="invalid_image")


def _put_newest(names: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    names[key] = value
    names.move_to_end(key)
    if len(names) > REMEMBERED:
        names.popitem(last=False)


class LazyPixels:
    """Pixels of an evicted image (`types.StoredPixels`), prepared again by each use. `shape` is that of the values."""

    def __init__(self, lookup: PatchLookup, shape: tuple[int, int], make: Callable[[], StoredPixels]) -> None:
        self.lookup, self.shape, self._make = lookup, shape, make

    def stored(self) -> np.ndarray:
        return self._make().stored()

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._make(), dtype=dtype)


class LruCache:
    """A mapping that evicts its least recently used values beyond `limit` bytes; the newest always stays."""

    def __init__(self, limit: int, size: Callable[[Any], int]) -> None:
        self.limit, self.size, self.used = limit, size, 0
        self.values: OrderedDict[str, Any] = OrderedDict()

    def get(self, key: str) -> Any:
        if key in self.values:
            self.values.move_to_end(key)
            return self.values[key]
        return None

    def put(self, key: str, value: Any) -> None:
        self.drop(key)
        self.values[key] = value
        self.used += self.size(value)
        while self.used > self.limit and len(self.values) > 1:
            self.used -= self.size(self.values.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        if key in self.values:
            self.used -= self.size(self.values.pop(key))
