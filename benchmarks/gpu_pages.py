"""Everything that needs a GPU: `make gpu`, or `python -m benchmarks.gpu_pages [--minutes 40]`.

Runs the benchmarks of one NVIDIA GPU in order of worth and writes their pages to docs/evidence/, as `evidence` does. No
network is used. A part that does not fit into the rest of the minutes is left out, and one that fails or takes too long
is named, with its output in its page, and the rest continues. Exits with 1 if a part failed or missed a threshold.

--smoke runs every part at its smallest size on the processor and writes to build/gpu_smoke/.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.evidence import PAGES, write_page
from benchmarks.thresholds import ROOT, print_head

SMOKE_PAGES = ROOT / "build" / "gpu_smoke"
MARGIN_MINUTES = 0.5
"""What a part that limits itself leaves of its limit, for its start and its end."""


@dataclass(frozen=True)
class Part:
    """A benchmark with its options, in which `{device}` and `{minutes}` are replaced."""

    page: str
    what: str
    benchmark: str
    options: str
    min_minutes: float
    """What must be left for it to start."""
    max_minutes: float
    """After which it is stopped."""

    def words(self, minutes: float, *, smoke: bool) -> list[str]:
        """Return the Python arguments for a limit of so many minutes."""
        within = max(self.min_minutes / 2, minutes - MARGIN_MINUTES)
        options = self.options.format(device="cpu" if smoke else "cuda:0", minutes=f"{within:.1f}")
        return ["-m", f"benchmarks.{self.benchmark}", "--smoke" if smoke else "--full", *options.split()]


PARTS = (
    Part("gpu_exactness", "exactness in bfloat16", "exactness", "--device {device} --dtype bfloat16", 1, 3),
    Part("gpu_exactness_float32", "exactness in float32", "exactness", "--device {device}", 1, 3),
    Part(
        "gpu_exactness_random", "exactness of 44 million random weights in bfloat16", "exactness",
        "--random --device {device} --dtype bfloat16", 1, 3,
    ),
    Part("gpu_lora", "Qwen3-VL-4B's shapes, LoRA", "gpu", "--only lora", 2, 7),
    Part("gpu_full", "Qwen3-VL-4B's shapes, full weights", "gpu", "--only full", 2, 7),
    Part("gpu_step", "where the time of a step is spent", "gpu_training", "--part step --minutes {minutes}", 2, 8),
    Part("gpu_learning", "a training run", "gpu_training", "--part learning --minutes {minutes}", 4, 12),
    Part("gpu_options", "what other kernels and transports would gain", "gpu_options", "", 1, 4),
)  # fmt: skip
"""In order of worth."""


def run_parts(parts: Sequence[Part], pages: Path, minutes: float, *, smoke: bool) -> list[str]:
    """Run the parts that fit into the minutes, print what came of each, and return the names of those that failed."""
    ends, failed = time.monotonic() + 60 * minutes, list[str]()
    for part in parts:
        left = (ends - time.monotonic()) / 60
        if left < part.min_minutes:
            print(f"== left out: {part.what}: {left:.1f} of {part.min_minutes:g} minutes are left", flush=True)
            continue
        limit = min(left, part.max_minutes)
        print(f"== {part.what}, at most {limit:.1f} minutes", flush=True)
        began = time.monotonic()
        code = write_page(part.page, part.words(limit, smoke=smoke), pages, 60 * limit)
        result = f"failed, or missed a threshold: see {pages / part.page}.md" if code else "done"
        print(f"== {part.what}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
        if code:
            failed.append(part.what)
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0, help="time for all parts (default: 40)")
    parser.add_argument("--smoke", action="store_true", help="every part at its smallest size, on the processor")
    parser.add_argument("--out", type=Path, help="output directory (default: docs/evidence)")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        parser.error("no CUDA device is available; use --smoke to rehearse on the processor")
    print_head()
    pages = options.out or (SMOKE_PAGES if options.smoke else PAGES)
    failed = run_parts(PARTS, pages.resolve(), options.minutes, smoke=options.smoke)
    print(f"pages: {pages}")
    print(f"failed or missed a threshold: {', '.join(failed)}" if failed else "no part failed")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
