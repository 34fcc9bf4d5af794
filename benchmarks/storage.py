"""What a stored screen costs: `python -m benchmarks.storage [--full]`.

The screens are those of steps in an editor that fills a desktop of 1280x720: words, clicks, selections, the wheel. Each codec is
given the same screens in the same order; a *read* is of one screen at random by a reader that has read nothing before, with all
the screens that it builds on.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard
from PIL import Image

from benchmarks.desktop_parts import USUAL, open_application
from benchmarks.thresholds import Bars, print_head
from deskhand.actions.ops import Click, Key, Op, Point, Scroll, Type, screen_px
from deskhand.desktop.local.desktop import LocalDesktop
from deskhand.store.frames import Frames

WORDS = ("apple", "bread", "cloud", "delta", "eagle", "flame", "grape", "house", "island", "jewel", "lemon", "melon")


async def screens(count: int) -> list[tuple[str, np.ndarray]]:
    """(name, pixels) of the screens after `count` steps, each different."""
    rng = random.Random(1)
    desktop = LocalDesktop()
    found: dict[str, np.ndarray] = {}
    try:
        await desktop.reset(USUAL)
        await open_application(desktop)
        step = 0
        while len(found) < count:
            place = Point(rng.randrange(40, 1200), rng.randrange(120, 680), screen_px(USUAL.width, USUAL.height))
            typed = " ".join(rng.choices(WORDS, k=8)) + rng.choice(("\n", " "))
            op: Op = rng.choice(
                (Type(typed), Type(typed), Click(place), Click(place, count=2), Scroll(dy=3), Key(("ctrl", "a")))
            )
            frame = await desktop.perform([op], action_id=str(step))
            found[frame.sha256] = frame.rgb()
            step += 1
    finally:
        await desktop.close()
    return list(found.items())


def png(level: int) -> tuple[Callable[[np.ndarray], bytes], Callable[[bytes], np.ndarray]]:
    def write(rgb: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(rgb).save(buffer, "PNG", compress_level=level)
        return buffer.getvalue()

    return write, lambda data: np.asarray(Image.open(io.BytesIO(data)))


def zstd(level: int) -> tuple[Callable[[np.ndarray], bytes], Callable[[bytes], np.ndarray]]:
    shape = (USUAL.height, USUAL.width, 3)
    return (
        lambda rgb: zstandard.ZstdCompressor(level=level).compress(rgb.data),
        lambda data: np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8).reshape(shape),
    )


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def encoded(
    found: list[tuple[str, np.ndarray]], write: Callable[[np.ndarray], bytes], read: Callable[[bytes], np.ndarray]
) -> tuple[list[int], list[float], list[float]]:
    """Sizes in bytes, and milliseconds of each write and read."""
    packed: list[bytes] = []
    writes = [timed(lambda pixels=pixels: packed.append(write(pixels))) for _, pixels in found]
    reads = [timed(lambda data=data: read(data)) for data in packed]
    return [len(data) for data in packed], writes, reads


def line(name: str, sizes: list[int], writes: list[float], reads: list[float]) -> float:
    mean = statistics.fmean(sizes) / 1024
    print(
        f"      {name:14} {mean:8.1f} KiB a screen, written in {statistics.median(writes):6.2f} ms, "
        f"read in {statistics.median(reads):6.2f} ms",
        flush=True,
    )
    return mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="300 screens instead of 60")
    count = 300 if parser.parse_args().full else 60
    print_head()
    found = asyncio.run(screens(count))
    print(f"{len(found)} screens of {USUAL.width}x{USUAL.height}")
    means = {}
    for name, codec in {"PNG level 1": png(1), "PNG level 6": png(6), "zstd 1": zstd(1), "zstd 3": zstd(3)}.items():
        means[name] = line(name, *encoded(found, *codec))
    with tempfile.TemporaryDirectory() as folder:
        frames = Frames(Path(folder))
        writes = [timed(lambda one=one: frames.put(*one)) for one in found]
        names = [name for name, _ in found]
        random.Random(2).shuffle(names)
        reads = [timed(lambda name=name: Frames(Path(folder)).rgb(name)) for name in names]
        means["stored"] = line("as stored", [frames.path(name).stat().st_size for name in names], writes, reads)
    bars = Bars()
    ratio = means["PNG level 1"] / means["stored"]
    bars.check("room beside PNG", ratio >= 10, f"{ratio:.0f}x smaller", ">= 10x")
    bars.check(
        "reading one screen",
        statistics.median(reads) <= 10,
        f"{statistics.median(reads):.1f} ms with its check",
        "<= 10 ms",
    )
    bars.finish()


if __name__ == "__main__":
    main()
