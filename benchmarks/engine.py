"""Throughput of the hf engine with the bundled policy, by concurrency: `python -m benchmarks.engine`.

Each client plays episodes of six turns: a new 256x192 screenshot (48 image tokens) and 24 text tokens per turn, with
the whole history. Outputs are cut at 6 tokens, about the length of an action. Measured with and without prefix cache,
alternating, with the ratio.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine
from deskhand.models.load import LoadedModel, load
from deskhand.types import ImageSpan, PreparedImage, Prompt, Sampling

TURNS, TEXT_TOKENS, OUTPUT_TOKENS = 6, 24, 6


@dataclass
class Episode:
    """A conversation that grows by a screenshot and text per turn."""

    model: LoadedModel
    random: np.random.Generator
    width: int
    height: int
    token_ids: tuple[int, ...] = ()
    spans: tuple[ImageSpan, ...] = ()
    images: dict[str, PreparedImage] = field(default_factory=dict)

    def observe(self) -> Prompt:
        vision = self.model.model.config.vision_config
        rows, columns = self.height // vision.patch_size, self.width // vision.patch_size
        values = 3 * vision.temporal_patch_size * vision.patch_size**2
        pixels = self.random.random((rows * columns, values), dtype=np.float32)
        tokens = rows * columns // self.model.merge_size**2
        name = hashlib.sha256(pixels.tobytes()).hexdigest()
        self.images[name] = PreparedImage(name, pixels, (1, rows, columns), tokens, self.width, self.height)
        text = tuple(int(value) for value in self.random.integers(0, 256, TEXT_TOKENS))
        self.spans += (ImageSpan(len(self.token_ids), tokens, name),)
        self.token_ids += (self.model.image_token_id,) * tokens + tuple(
            t for t in text if t != self.model.image_token_id
        )
        return Prompt(self.token_ids, self.spans, dict(self.images))


async def play(
    engine: HfEngine, model: LoadedModel, seed: int, width: int, height: int, latencies_s: list[float]
) -> None:
    episode = Episode(model, np.random.default_rng(seed), width, height)
    sampling = Sampling(max_tokens=OUTPUT_TOKENS, banned_ids=(model.image_token_id,), seed=seed)
    for _ in range(TURNS):
        prompt = episode.observe()
        started = time.perf_counter()
        completion = await engine.generate(prompt, sampling)
        latencies_s.append(time.perf_counter() - started)
        episode.token_ids += completion.token_ids


@dataclass(frozen=True)
class Measured:
    """Results of one engine under one load."""

    requests_per_s: float
    cpu_ms: float
    """Per request."""
    median_ms: float
    p95_ms: float
    rows: float
    """Requests per forward pass."""

    def line(self, concurrency: int, reuse: bool) -> str:
        return (
            f"{concurrency:11d} {'yes' if reuse else 'no':>6} {self.requests_per_s:11.1f} {self.cpu_ms:14.1f} "
            f"{self.median_ms:10.0f} {self.p95_ms:9.0f} {self.rows:14.1f}"
        )


async def measure(
    source: str, concurrency: int, seconds: float, prefix_cache_tokens: int, width: int, height: int, device: str
) -> Measured:
    """Play episodes for a number of seconds."""
    model = load(source, device=device, dtype="float32" if device == "cpu" else "bfloat16")
    engine = HfEngine(model, EngineConfig(max_num_seqs=16, prefix_cache_tokens=prefix_cache_tokens))
    await play(engine, model, 10**6, width, height, [])
    latencies_s: list[float] = []
    before, started, cpu = engine.stats, time.perf_counter(), time.process_time()
    end = started + seconds

    async def caller(index: int) -> None:
        seed = index
        while time.perf_counter() < end:
            await play(engine, model, seed, width, height, latencies_s)
            seed += concurrency

    await asyncio.gather(*(caller(index) for index in range(concurrency)))
    wall_s, cpu_s, after = time.perf_counter() - started, time.process_time() - cpu, engine.stats
    await engine.close()
    requests = after.requests - before.requests
    rows = (after.decoded_tokens - before.decoded_tokens) / (
        after.decode_steps + after.prefills - before.decode_steps - before.prefills
    )
    return Measured(
        requests / wall_s,
        1e3 * cpu_s / requests,
        1e3 * float(np.median(latencies_s)),
        1e3 * float(np.quantile(latencies_s, 0.95)),
        rows,
    )


def middle(found: list[Measured]) -> Measured:
    """Return the run with the median rate."""
    return sorted(found, key=lambda one: one.requests_per_s)[len(found) // 2]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--screen", default="256x192")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=1, help="with and without reuse take turns so often")
    options = parser.parse_args()
    width, height = (int(part) for part in options.screen.split("x"))
    if options.size == "smoke":
        options.rounds, options.seconds, options.concurrency = 1, 0.3, [2]
    rounds, seconds = (3, 10.0) if options.size == "full" else (options.rounds, options.seconds)
    print_head()
    print(f"{options.model} on {options.device}, torch {torch.__version__} with {torch.get_num_threads()} threads")
    print("concurrency  reuse  requests/s  CPU ms/request  median ms  95 % ms  rows per pass")
    thresholds = Thresholds()
    for concurrency in options.concurrency:
        found: dict[int, list[Measured]] = {32768: [], 0: []}
        for _ in range(rounds):
            for prefix_cache_tokens, runs in found.items():
                settings = (options.model, concurrency, seconds, prefix_cache_tokens, width, height, options.device)
                runs.append(asyncio.run(measure(*settings)))
        with_reuse, without = (middle(runs) for runs in found.values())
        print(f"{with_reuse.line(concurrency, True)}\n{without.line(concurrency, False)}", flush=True)
        ratio = with_reuse.requests_per_s / without.requests_per_s
        thresholds.check(
            f"reuse of earlier turns, {concurrency} callers", ratio > 1, f"{ratio:.2f} times the requests/s", "> 1"
        )
    thresholds.finish()


if __name__ == "__main__":
    main()
