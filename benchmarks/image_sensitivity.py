"""Whether the policy uses its screenshots: `python -m benchmarks.image_sensitivity [--full] [--model DIR]`.

The trainer scores recorded episodes again with other images: those of another episode of the same screen size and, as
a baseline, the same images after a lossless round trip. Measured is the mean change of the log-probs of the sampled
coordinates, in nats.
"""

from __future__ import annotations

import asyncio
import io
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.recording import Recording, held_out_tasks, record
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.models.load import load
from deskhand.recorder.graph import CallGraph, Sequence
from deskhand.recorder.images import ImageCache
from deskhand.recorder.renderer import ChatRenderer
from deskhand.trainer.policy import Policy
from deskhand.trainer.vision_probe import swap_images
from deskhand.types import PreparedImage

_COORDINATE = re.compile(r'"[xy]2?":(\d+)|\[(\d+),(\d+)\]')


@dataclass(frozen=True)
class Sight:
    """Mean absolute change of a coordinate token's log-prob, in nats."""

    episodes: int
    coordinates: int
    swapped: float
    reencoded: float
    other_tokens: float
    """The change by the swap of sampled tokens that are no coordinates, for comparison."""


async def measure(source: str, folder: Path, *, episodes: int, desktops: int = 2) -> Sight:
    """Record episodes, then score again."""
    recording = await record(source, held_out_tasks(episodes), folder, desktops=desktops)
    return await asyncio.to_thread(compare, source, recording)


def compare(source: str, recording: Recording) -> Sight:
    """Score all sequences with original, swapped and re-encoded images."""
    model = load(source)
    policy = Policy(model.model, banned_ids=recording.renderer.banned_ids)
    graphs = [result.graph for result in recording.results if result.graph.calls]
    rows, swapped_rows = [], []
    for graph, donor in partners(graphs, recording.images):
        rows += graph.sequences()
        swapped_rows += [swap_images(row, donor) for row in graph.sequences()]
    names = {span.sha256 for row in rows for span in row.spans}
    seen = _scores(policy, rows, recording.images)
    swapped = _scores(policy, swapped_rows, recording.images)
    encoded = _scores(policy, rows, reencoded(names, recording, ImageCache(model.image_processor)))
    marks = np.concatenate([coordinate_marks(row, recording.renderer) for row in rows])
    change = np.abs(swapped - seen)
    return Sight(
        episodes=len(graphs),
        coordinates=int(marks.sum()),
        swapped=float(change[marks].mean()),
        reencoded=float(np.abs(encoded - seen)[marks].mean()),
        other_tokens=float(change[~marks].mean()),
    )


def _scores(policy: Policy, rows: list[Sequence], images: Mapping[str, PreparedImage]) -> np.ndarray:
    return np.concatenate(policy.logprobs(rows, images)).astype(np.float64)


def partners(graphs: list[CallGraph], images: Mapping[str, PreparedImage]) -> list[tuple[CallGraph, list[str]]]:
    """Pair each graph with the images of the next graph of the same screen size, if any."""
    by_size: dict[tuple[int, int, int], list[CallGraph]] = {}
    for graph in graphs:
        by_size.setdefault(images[graph.calls[0].spans[0].sha256].grid_thw, []).append(graph)
    return [
        (graph, [call.spans[-1].sha256 for call in alike[(place + 1) % len(alike)].calls])
        for alike in by_size.values()
        if len(alike) > 1
        for place, graph in enumerate(alike)
    ]


def reencoded(names: set[str], recording: Recording, fresh: ImageCache) -> dict[str, PreparedImage]:
    """Return the recorded images after a lossless round trip, prepared by a new cache."""
    found = {}
    for name in sorted(names):
        kept = recording.frames.png(name)
        buffer = io.BytesIO()
        Image.open(io.BytesIO(kept)).convert("RGB").save(buffer, "PNG", compress_level=9)
        if buffer.getvalue() == kept:
            raise SystemExit(f"picture {name[:12]} was encoded to the same bytes; the round trip would show nothing")
        found[name] = fresh.add(buffer.getvalue())
    return found


def coordinate_marks(row: Sequence, renderer: ChatRenderer) -> np.ndarray:
    """Return whether each sampled token contains a digit of a coordinate, bool[sampled tokens]."""
    texts = [renderer.token_text(token) for token, sampled in zip(row.token_ids, row.loss_mask, strict=True) if sampled]
    owners = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    marks = np.zeros(len(texts), dtype=bool)
    for match in _COORDINATE.finditer("".join(texts)):
        for group in (1, 2, 3):
            start, end = match.span(group)
            marks[owners[max(start, 0) : max(end, 0)]] = True
    return marks


def judge(found: Sight, thresholds: Thresholds) -> None:
    """Check the results against the thresholds."""
    print(f"{found.episodes} episodes, {found.coordinates} sampled coordinates")
    print(
        f"mean |change of log-prob|: coordinates {found.swapped:.3f} nat, other sampled tokens "
        f"{found.other_tokens:.3f} nat"
    )
    thresholds.check("swapped pictures", found.swapped >= 0.5, f"mean |change| {found.swapped:.3f} nat", ">= 0.5 nat")
    scale = f"{found.reencoded:.2e} nat by a lossless re-encoding"
    thresholds.check(
        "against re-encoding",
        found.swapped >= 20 * found.reencoded,
        f"{found.swapped:.3f} nat, {scale}",
        ">= 20 times it",
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="tiny")
    options = parser.parse_args()
    print_head()
    sizes = {"smoke": {"episodes": 4}, "small": {"episodes": 8}, "full": {"episodes": 96, "desktops": 4}}[options.size]
    with tempfile.TemporaryDirectory(prefix="deskhand-sight-") as folder:
        found = asyncio.run(measure(options.model, Path(folder), **sizes))
    thresholds = Thresholds()
    judge(found, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
