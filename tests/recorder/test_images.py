"""Images are named by their pixels, prepared once, cached in bounded memory, and rejected if invalid."""

from __future__ import annotations

import base64
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from recording import data_uri, picture, png

from deskhand.desktop.base import Frame
from deskhand.errors import ConfigError, InfrastructureError, RecordError
from deskhand.models import forward
from deskhand.recorder import images as images_module
from deskhand.recorder.fast_patches import PatchExtractor
from deskhand.recorder.image_decoding import decode_rgb, read_data_uri
from deskhand.recorder.images import IMAGE, ImageCache, NamedImages
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.types import Checksum


class CountingProcessor:
    """The checkpoint's image processor, counting its calls."""

    def __init__(self, processor: Any) -> None:
        self.processor, self.merge_size, self.calls = processor, processor.merge_size, 0

    def __call__(self, **arguments: Any) -> Any:
        self.calls += 1
        return self.processor(**arguments)


def test_a_frame_is_named_as_the_desktop_names_it(images: ImageCache) -> None:
    bgrx = np.random.default_rng(1).integers(0, 256, (24, 32, 4), dtype=np.uint8)
    frame = Frame(bgrx, 0, "", 0.0, "quiet", None, (0, 0))
    assert images.add(frame.png()).sha256 == frame.sha256


def test_tokens_follow_from_the_grid_and_pixels_from_the_processor(images: ImageCache, image_processor: Any) -> None:
    prepared = images.add(png(3))
    want = image_processor(images=[picture(3)], return_tensors="np")
    assert prepared.grid_thw == tuple(want["image_grid_thw"][0])
    assert prepared.tokens == np.prod(prepared.grid_thw) // 4
    assert np.asarray(prepared.pixel_values).dtype == np.float32
    assert np.array_equal(prepared.pixel_values, want["pixel_values"])


def test_other_encodings_of_the_same_pixels_are_the_same_image(image_processor: Any) -> None:
    processor = CountingProcessor(image_processor)
    images = ImageCache(processor)
    first = images.add(png(3))
    assert images.add(png(3, compress_level=0)) is first
    assert images.add(png(picture(3).convert("RGBA"))) is first
    assert images.add_data_uri(data_uri(png(3, compress_level=9))) is first
    assert images.add_data_uri(data_uri(png(3, compress_level=9))) is first
    assert processor.calls == len(images) == 1


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "PA", "RGBA", "I;16"])
def test_a_png_of_any_mode_gives_exactly_its_rgb_pixels(mode: str) -> None:
    gray = np.arange(24 * 32, dtype=np.uint32).reshape(24, 32) % 256
    if mode == "I;16":
        source = Image.fromarray((gray * 257).astype(np.uint16))
        want = np.repeat(gray[:, :, None], 3, 2)
    elif mode in ("LA", "RGBA"):
        source = picture(5).convert(mode)
        alpha = np.where(gray % 2, 255, 0).astype(np.uint8)
        source.putalpha(Image.fromarray(alpha))
        color = np.asarray(source.convert("RGBA"))[:, :, :3]
        want = np.where(alpha[:, :, None], color, 255)
    else:
        source = picture(5).convert("P" if mode == "PA" else mode)
        if mode == "PA":
            source.info["transparency"] = 0
        want = np.asarray(source.convert("RGB") if mode != "PA" else _over_white(source))
    got = decode_rgb(png(source), max_pixels=10**6)
    assert got.dtype == np.uint8
    assert np.array_equal(got, want)


def _over_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.composite(rgba.convert("RGB"), Image.new("RGB", image.size, "white"), rgba.getchannel("A"))


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://example.org/a.png", "remote_image"),
        ("/etc/passwd", "remote_image"),
        ("data:image/png,abc", "invalid_image"),
        ("data:text/html;base64,AAAA", "invalid_image"),
        ("data:image/png;base64,@@@@", "invalid_image"),
        ("data:image/png;base64,AAAA", "invalid_image"),
        ("data:image/png;base64,", "invalid_image"),
    ],
)
def test_what_is_not_an_image_data_uri_is_rejected(images: ImageCache, url: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        images.add_data_uri(url, param="here")
    assert (caught.value.code, caught.value.param, caught.value.status) == (code, "here", 400)


def test_oversize_truncated_and_animated_images_are_rejected(image_processor: Any) -> None:
    images = ImageCache(image_processor, max_pixels=800, max_encoded_bytes=5000)
    images.add(png(picture(1, 32, 24)))
    frames = [picture(1, 16, 16), picture(2, 16, 16)]
    for encoded, code in [
        (png(picture(1, 40, 30)), "image_too_large"),
        (b"x" * 5001, "image_too_large"),
        (png(1)[:-40], "invalid_image"),
        (png(frames[0], save_all=True, append_images=frames[1:]), "invalid_image"),
        (png(picture(1, 400, 1)), "invalid_image"),
    ]:
        with pytest.raises(InvalidRequestError) as caught:
            images.add(encoded)
        assert caught.value.code == code


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_rejected_or_decoded(data: st.DataObject) -> None:
    encoded = bytearray(png(7))
    for _ in range(data.draw(st.integers(1, 8))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode_rgb(bytes(encoded), max_pixels=10**6)
    except InvalidRequestError:
        return
    assert (pixels.dtype, pixels.shape[2]) == (np.uint8, 3)


@settings(deadline=None)
@given(st.text(max_size=60), st.sampled_from(["", "data:", "data:image/png;base64,"]))
def test_any_text_as_url_is_rejected_or_read(text: str, head: str) -> None:
    try:
        encoded = read_data_uri(head + text)
    except InvalidRequestError:
        return
    assert base64.b64encode(encoded).decode() == text


def test_memory_is_bounded_and_evicted_images_are_prepared_again(image_processor: Any) -> None:
    processor = CountingProcessor(image_processor)
    one = ImageCache(processor).add(png(0)).pixel_values.nbytes
    processor.calls = 0
    images = ImageCache(processor, prepared_bytes=3 * one)
    names = [images.add(png(seed)).sha256 for seed in range(8)]
    assert images._prepared.used <= 3 * one
    assert set(images) == set(names)
    again = images[names[0]]
    assert (processor.calls, len(again.pixel_values), again.tokens) == (
        8,
        len(again.pixel_values),
        images[names[7]].tokens,
    )
    assert images.add(png(0)).checksum == again.checksum
    assert processor.calls == 8, "what is known of an image costs nothing; only its pixels do"
    assert np.asarray(again.pixel_values).nbytes == one
    assert processor.calls == 9
    assert np.array_equal(again.pixel_values, ImageCache(image_processor).add(png(0)).pixel_values)


def test_released_images_take_no_memory_and_are_prepared_again(image_processor: Any) -> None:
    kept = {name: png(seed) for seed in range(4) for name in [ImageCache(image_processor).add(png(seed)).sha256]}
    images = ImageCache(image_processor, fetch=kept.__getitem__)
    before = {name: np.asarray(images.add(encoded).pixel_values) for name, encoded in kept.items()}
    first, *others = kept
    images.release([*others, "unknown"])
    assert images._prepared.used == images[first].pixel_values.nbytes
    for name, values in before.items():
        assert np.array_equal(images[name].pixel_values, values)


def test_an_image_that_is_stored_nowhere_else_is_not_released(image_processor: Any) -> None:
    images = ImageCache(image_processor, encoded_bytes=1)
    names = [images.add(png(seed)).sha256 for seed in range(2)]  # the newest encoded image stays
    images.release(names)
    for name in names:
        assert len(np.asarray(images[name].pixel_values))


def test_patches_are_extracted_on_access_once_and_stored_as_bytes(
    image_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, extract = list[int](), PatchExtractor.extract
    images = ImageCache(image_processor)
    monkeypatch.setattr(PatchExtractor, "extract", lambda maker, rgb: made.append(1) or extract(maker, rgb))
    shown = images.add(png(3))
    assert (made, shown.checksum.value) == ([], None), "an engine that asks for no patches pays for none"
    first, second = np.asarray(shown.pixel_values), np.asarray(images[shown.sha256].pixel_values)
    assert made == [1]
    assert not np.shares_memory(first, second), "who changes the values changes nobody else's"
    stored = shown.pixel_values.stored()
    assert stored.nbytes * image_processor.temporal_patch_size == np.prod(shown.pixel_values.shape)
    assert stored.nbytes <= shown.pixel_values.nbytes
    assert shown.checksum.matches(stored)


def test_threads_that_ask_for_patches_at_once_extract_them_once(
    image_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, extract = list[int](), PatchExtractor.extract
    shown = ImageCache(image_processor).add(png(3))
    monkeypatch.setattr(PatchExtractor, "extract", lambda maker, rgb: made.append(1) or extract(maker, rgb))
    gate = threading.Barrier(8)

    def ask(_: int) -> bytes:
        gate.wait()
        return shown.pixel_values.stored().tobytes()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert made == [1]


def test_pixels_of_this_process_are_the_same_image_without_encoding_or_hashing(
    image_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = ImageCache(image_processor).add(png(3))
    stored: dict[str, np.ndarray] = {sent.sha256: np.asarray(picture(3))}
    images = ImageCache(image_processor, fetch=stored.__getitem__, prepared_bytes=1)
    other = hashlib.sha256(np.asarray(picture(4))).hexdigest()
    with monkeypatch.context() as patch:
        for work in ("decode_rgb", "pixels_sha256"):
            patch.setattr(images_module, work, lambda *_, **__: pytest.fail("decoded or hashed"))
        added = images.add_pixels(sent.sha256, np.asarray(picture(3)), lambda: pytest.fail("encoded"))
        images.add_pixels(other, np.asarray(picture(4)), lambda: pytest.fail("encoded"))
    assert (added.sha256, added.grid_thw, added.tokens, added.width, added.height) == (
        sent.sha256,
        sent.grid_thw,
        sent.tokens,
        sent.width,
        sent.height,
    )
    assert np.array_equal(added.pixel_values, sent.pixel_values)
    assert np.array_equal(images[sent.sha256].pixel_values, sent.pixel_values), "evicted, and fetched as pixels"
    stored[sent.sha256] = np.asarray(picture(5))
    with pytest.raises(RecordError, match="image_changed"):
        ImageCache(image_processor, fetch=stored.__getitem__)[sent.sha256]


def test_pixels_of_this_process_are_encoded_where_encoded_images_are_stored(image_processor: Any) -> None:
    stored: dict[str, bytes] = {}
    rgb, name = np.asarray(picture(3)), hashlib.sha256(np.asarray(picture(3))).hexdigest()
    ImageCache(image_processor, on_new=stored.__setitem__).add_pixels(name, rgb, lambda: png(3))
    assert stored == {name: png(3)}
    images = ImageCache(image_processor, prepared_bytes=1)
    images.add_pixels(name, rgb, lambda: png(3))
    images.add(png(4))
    assert np.array_equal(images[name].pixel_values, ImageCache(image_processor).add(png(3)).pixel_values)


def test_names_are_images_only_for_clients_of_this_process(image_processor: Any) -> None:
    images = ImageCache(image_processor)
    name = images.add(png(3)).sha256
    named = NamedImages(images)
    assert named.add_data_uri(IMAGE + name).sha256 == name
    url = "data:image/png;base64," + base64.b64encode(png(4)).decode()
    assert named.add_data_uri(url).sha256 == images.add(png(4)).sha256
    for wrong in (IMAGE + "0" * 64, IMAGE, IMAGE + "../" + name):
        with pytest.raises(InvalidRequestError, match="no image has this name"):
            named.add_data_uri(wrong)
    with pytest.raises(InvalidRequestError, match="data URIs"):
        images.add_data_uri(IMAGE + name)


def test_recomputed_pixel_values_are_compared_with_the_first_ones(
    image_processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: dict[str, bytes] = {}
    images = ImageCache(image_processor, fetch=stored.__getitem__, on_new=stored.__setitem__, prepared_bytes=1)
    name = images.add(png(1)).sha256
    forward.stack_images([images[name]], "cpu")
    images.add(png(2))
    forward.stack_images([images[name]], "cpu")
    images.add(png(3))
    keep = PatchExtractor.extract

    def another(maker: PatchExtractor, rgb_HWC: np.ndarray) -> Any:
        kept, grid = keep(maker, rgb_HWC)
        return kept[:, ::-1], grid

    monkeypatch.setattr(PatchExtractor, "extract", another)
    with pytest.raises(RecordError, match="pixels"):
        forward.stack_images([images[name]], "cpu")


@pytest.mark.parametrize("columns", [96, 147, 768])
def test_a_checksum_detects_any_other_values(columns: int) -> None:
    values, checksum = np.random.default_rng(columns).normal(size=(40, columns)).astype(np.float32), Checksum()
    checksum.record(values)
    checksum.record(np.zeros_like(values))
    assert checksum.matches(values.copy()), "the first count"
    others = {name: values.copy() for name in ("a bit", "rows", "neighbors", "distant values", "half of it")}
    others["a bit"].view(np.uint32)[17, 5] ^= 1
    others["rows"][[3, 30]] = values[[30, 3]]
    others["neighbors"][9, [10, 11]] = values[9, [11, 10]]
    others["distant values"][9, [10, 80]] = values[9, [80, 10]]
    others["half of it"][20:] = 0
    assert [name for name, other in others.items() if checksum.matches(other)] == []


def test_patches_in_a_batch_that_were_never_made_for_their_image_are_noticed(
    images: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = images.add(png(1))
    stored = torch.from_numpy(shown.pixel_values.stored())
    monkeypatch.setattr(forward, "join_pixels", lambda found: torch.zeros_like(stored))
    with pytest.raises(RecordError, match="pixels"):
        forward.stack_images([shown], "cpu")


def test_images_come_back_from_storage_and_changed_storage_is_noticed(image_processor: Any) -> None:
    stored: dict[str, bytes] = {}
    first = ImageCache(image_processor, on_new=stored.__setitem__)
    name = first.add(png(1)).sha256
    first.add(png(1, compress_level=0))
    assert stored == {name: png(1)}
    second = ImageCache(image_processor, fetch=stored.__getitem__)
    assert name in second, "what an earlier process stored is there"
    assert "0" * 64 not in second
    assert np.array_equal(second[name].pixel_values, first[name].pixel_values)
    for wrong in (png(2), b"damaged"):
        stored[name] = wrong
        with pytest.raises(RecordError, match="image_changed"):
            ImageCache(image_processor, fetch=stored.__getitem__)[name]
    with pytest.raises(KeyError):
        second["0" * 64]
    with pytest.raises(KeyError):
        first["0" * 64]


def test_evicted_bytes_are_a_record_error(image_processor: Any) -> None:
    images = ImageCache(image_processor, prepared_bytes=1, encoded_bytes=1)
    name = images.add(png(1)).sha256
    images.add(png(2))
    with pytest.raises(RecordError, match="image_lost"):
        images[name]


def test_an_image_that_could_not_be_stored_is_stored_at_the_next_try(image_processor: Any) -> None:
    tries: list[str] = []

    def store(name: str, encoded: bytes) -> None:
        tries.append(name)
        if len(tries) == 1:
            raise OSError("disk full")

    images = ImageCache(image_processor, on_new=store)
    with pytest.raises(InfrastructureError, match="disk full"):
        images.add(png(1))
    images.add(png(1))
    assert len(tries) == 2


def test_threads_that_add_the_same_image_prepare_it_once(image_processor: Any) -> None:
    processor = CountingProcessor(image_processor)
    images = ImageCache(processor)
    gate = threading.Barrier(8)

    def add(_: int) -> str:
        gate.wait()
        return images.add(png(1)).sha256

    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(add, range(8)))
    assert names == {hashlib.sha256(picture(1).tobytes()).hexdigest()}
    assert processor.calls == 1


def test_an_image_processor_of_another_family_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="merge_size"):
        ImageCache(object())
