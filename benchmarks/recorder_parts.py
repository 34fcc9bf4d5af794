"""Single-threaded cost of each step of processing a new screenshot, using the recorder's own functions on unseen
images.

For comparison: the checkpoint's image processor on the same images.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from benchmarks.synthetic_screens import Endpoint, screenshot
from deskhand.recorder.fast_patches import PatchExtractor
from deskhand.recorder.image_decoding import decode_rgb, pixels_sha256, read_data_uri
from deskhand.recorder.session_store import SessionStore
from deskhand.types import Checksum

COUNT, SKIPPED = 40, 0.25
"""Screenshots, and what share of them comes before those that count: a process's first meet memory that was never
used."""
PILLOW = "decoding by Pillow"
T = TypeVar("T")


class Parts:
    """Milliseconds of each part by name."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    def time(self, name: str, work: Callable[[], T]) -> T:
        """Run `work` and record its duration."""
        started = time.perf_counter()
        result = work()
        self.found.setdefault(name, []).append((time.perf_counter() - started) * 1e3)
        return result

    def medians(self) -> dict[str, float]:
        """Return the medians of the measured runs."""
        return {name: float(np.median(times[int(SKIPPED * len(times)) :])) for name, times in self.found.items()}


def parts_ms(screen: tuple[int, int], count: int) -> dict[str, float]:
    """Return the median milliseconds of each part."""
    bench, parts = Endpoint(), Parts()
    patches = PatchExtractor(bench.processor)
    with tempfile.TemporaryDirectory() as folder:
        files = SessionStore(Path(folder))
        for number in range(count):
            png = screenshot(np.random.default_rng([7, number]), *screen)
            url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            parts.time("hash of what was sent", lambda url=url: hashlib.sha256(url.encode()).digest())
            encoded = parts.time("base64", lambda url=url: read_data_uri(url))
            rgb = parts.time("decoding", lambda encoded=encoded: decode_rgb(encoded, max_pixels=1 << 26))
            parts.time(PILLOW, lambda encoded=encoded: np.asarray(Image.open(io.BytesIO(encoded))))
            name = parts.time("hash of the pixels", lambda rgb=rgb: pixels_sha256(rgb))
            kept, _ = parts.time("resizing, order of patches", lambda rgb=rgb: patches.extract(rgb))
            parts.time("on disk", lambda name=name, encoded=encoded: files.save_image(name, encoded))
            parts.time("their checksum", lambda kept=kept: Checksum().record(kept))
            parts.time("values for an engine", lambda kept=kept: patches.lookup.values(kept))
            parts.time(
                "all of that by the processor", lambda rgb=rgb: bench.processor(images=[rgb], return_tensors="np")
            )
    return parts.medians()


def print_parts(screen: tuple[int, int], count: int) -> None:
    """Print the parts on one line."""
    found = parts_ms(screen, count)
    whole, pillow = found.pop("all of that by the processor"), found.pop(PILLOW)
    figures = ", ".join(f"{name} {ms:.1f}" for name, ms in found.items())
    print(
        f"one new screenshot, ms of one thread: {figures}; resizing, order and values by the "
        f"checkpoint's processor {whole:.1f}; {PILLOW} {pillow:.1f}"
    )
