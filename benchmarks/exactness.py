"""Agreement of trainer and engine: `python -m benchmarks.exactness [--full] [--model DIR | --random]
[--device DEVICE] [--dtype DTYPE]`.

Episodes on local desktops are recorded at temperature 1 through the OpenAI endpoint, with a history that grows to 4
turns and drops to 2 (so that the call graph forks), while the engine batches other clients. Then, with the same
weights, by default in float32 on the processor:

- log-probs of the sampled tokens, trainer against engine;
- gradient of one GRPO step, merged sequences (a chain of calls is one sequence) against one sequence per call;
- in bfloat16, also log-probs and gradient against those of the trainer in float32 on the same device.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from benchmarks import random_checkpoint
from benchmarks.recording import Recording, held_out_tasks, record
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.agents.desktop_agent import AgentConfig
from deskhand.algorithms.objective import kl_estimate
from deskhand.models.load import load
from deskhand.recorder.graph import Sequence
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

AGENT = AgentConfig(history_max_turns=4, history_keep_turns=2)


@dataclass(frozen=True)
class Bounds:
    """Thresholds of a dtype; differences in nats."""

    difference: float
    kl: float
    cosine: float


BOUNDS = {"float32": Bounds(1e-3, 1e-6, 0.9999), "bfloat16": Bounds(0.5, 1e-2, 0.99)}
"""In bfloat16 the engine and the trainer round at other places. Its KL bound is that of `loop.health`."""


@dataclass(frozen=True)
class Weights:
    """A checkpoint, and where and how its weights are loaded."""

    source: str
    device: str = "cpu"
    dtype: str = "float32"

    def policy(self, recording: Recording) -> Policy:
        model = load(self.source, dtype=self.dtype, device=self.device).model
        return Policy(model, banned_ids=recording.renderer.banned_ids)


@dataclass(frozen=True)
class Exactness:
    """Measurements."""

    episodes: int
    fewest_turns: int
    forks: int
    """Calls that extend no earlier call, excluding each episode's first."""
    images: int
    tokens: int
    rows_per_pass: float
    """Mean number of requests per forward pass of the engine."""
    largest_difference: float
    """In nats, over all sampled tokens."""
    kl: float
    """Mean k3 estimate in nats per token."""
    merged_rows: int
    single_rows: int
    cosine: float
    """Cosine similarity of the merged and unmerged gradients."""
    float32_difference: float | None = None
    """Largest difference of the trainer's log-probs from those in float32, in nats; None in float32."""
    float32_cosine: float | None = None
    """Cosine similarity of the merged gradient and that of float32; None in float32."""


async def measure(
    weights: Weights, folder: Path, *, episodes: int, turns: int, desktops: int = 2, bystanders: int = 2
) -> Exactness:
    """Record episodes, then compare."""
    recording = await record(
        weights.source,
        held_out_tasks(episodes),
        folder,
        desktops=desktops,
        agent=AGENT,
        turns=turns,
        bystanders=bystanders,
        device=weights.device,
        dtype=weights.dtype,
    )
    return await asyncio.to_thread(compare, weights, recording)


def compare(weights: Weights, recording: Recording) -> Exactness:
    """Compare engine and trainer, merged and unmerged sequences, and bfloat16 with float32."""
    graphs = [result.graph for result in recording.results]
    policy = weights.policy(recording)
    rows = [row for graph in graphs for row in graph.sequences()]
    differences = logprob_differences(policy, rows, recording)
    merged, single = (gradient(weights, recording, merge) for merge in (True, False))
    more: dict[str, float] = {}
    if weights.dtype != "float32":
        exact = replace(weights, dtype="float32")
        changes = logprob_differences(exact.policy(recording), rows, recording) - differences
        more["float32_difference"] = float(np.abs(changes).max())
        more["float32_cosine"] = cosine(merged, gradient(exact, recording, True))
    stats = recording.engine
    return Exactness(
        episodes=len(graphs),
        fewest_turns=min(len(graph.calls) for graph in graphs),
        forks=sum(call.parent is None for graph in graphs for call in graph.calls) - len(graphs),
        images=len({span.sha256 for row in rows for span in row.spans}),
        tokens=len(differences),
        rows_per_pass=stats.decoded_tokens / (stats.decode_steps + stats.prefills),
        largest_difference=float(np.abs(differences).max()),
        kl=float(kl_estimate(differences, np.zeros_like(differences)).mean()),
        merged_rows=len(rows),
        single_rows=sum(len(graph.calls) for graph in graphs),
        cosine=cosine(merged, single),
        **more,
    )


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def logprob_differences(policy: Policy, rows: list[Sequence], recording: Recording) -> np.ndarray:
    """Return trainer minus engine log-probs of every sampled token, float64[tokens]."""
    found = policy.logprobs(rows, recording.images)
    stated = [np.asarray(row.logprobs)[np.asarray(row.loss_mask)] for row in rows]
    return np.concatenate([new.astype(np.float64) - old for new, old in zip(found, stated, strict=True)])


def gradient(weights: Weights, recording: Recording, merge: bool) -> torch.Tensor:
    """The gradient of one step of the trainer on all episodes, half of them praised and half blamed,
    float64[parameters].

    It is read from the optimizer: its first moment after one step from zero is the gradient times a constant.
    """
    trainer = Trainer(weights.policy(recording))
    samples = [
        TrainingSample(row, 1.0 if number % 2 else -1.0, result.episode_id)
        for number, result in enumerate(recording.results)
        for row in result.graph.sequences(merge)
    ]
    done = trainer.step(samples, recording.images)
    if done.rejected or not done.num_updates:
        raise SystemExit(
            f"the trainer rejected {done.rejected} and made {done.num_updates} updates; nothing can be compared"
        )
    moments = [trainer.optimizer.state[parameter]["exp_avg"] for parameter in trainer.policy.parameters().values()]
    return torch.cat([moment.reshape(-1).double() for moment in moments])


def judge(found: Exactness, thresholds: Thresholds, bounds: Bounds = BOUNDS["float32"]) -> None:
    """Check the results against the thresholds."""
    print(f"{found.episodes} episodes, {found.images} screenshots, {found.tokens} sampled tokens, {found.forks} forks")
    thresholds.check("turns an episode", found.fewest_turns >= 5, f"{found.fewest_turns} at least", ">= 5")
    thresholds.check("window forks", found.forks >= found.episodes, f"{found.forks}", "one an episode")
    thresholds.check(
        "engine batched others", found.rows_per_pass > 1, f"{found.rows_per_pass:.2f} requests a pass", "> 1"
    )
    largest = f"max |difference| {found.largest_difference:.2e} nat"
    thresholds.check("log-probs", found.largest_difference < bounds.difference, largest, f"< {bounds.difference:g}")
    thresholds.check("KL estimate", found.kl < bounds.kl, f"mean {found.kl:.2e} nat", f"< {bounds.kl:g}")
    rows = f"{found.merged_rows} rows against {found.single_rows}"
    similarity = f"cosine {found.cosine:.8f}, {rows}"
    thresholds.check("merged gradient", found.cosine > bounds.cosine, similarity, f"> {bounds.cosine:g}")
    if found.float32_difference is not None:
        print(f"trainer's log-probs against float32: max |difference| {found.float32_difference:.2e} nat")
        print(f"merged gradient against float32: cosine {found.float32_cosine:.6f}")


def main() -> None:
    parser = parser_of(__doc__)
    checkpoints = parser.add_mutually_exclusive_group()
    checkpoints.add_argument("--model", default="tiny")
    checkpoints.add_argument("--random", action="store_true", help="random weights of `random_checkpoint.MEDIUM`")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=sorted(BOUNDS), default="float32")
    options = parser.parse_args()
    print_head()
    sizes = {
        "smoke": {"episodes": 1, "turns": 5, "bystanders": 1},
        "small": {"episodes": 4, "turns": 6},
        "full": {"episodes": 24, "turns": 8, "desktops": 4, "bystanders": 4},
    }[options.size]
    with tempfile.TemporaryDirectory(prefix="deskhand-exactness-") as folder:
        model = options.model
        if options.random:
            model = str(Path(folder) / "model")
            random_checkpoint.write(Path(model), random_checkpoint.MEDIUM, options.device, "float32")
        print(f"{'random weights' if options.random else model} in {options.dtype} on {options.device}")
        weights = Weights(model, options.device, options.dtype)
        found = asyncio.run(measure(weights, Path(folder) / "frames", **sizes))
    thresholds = Thresholds()
    judge(found, thresholds, BOUNDS[options.dtype])
    thresholds.finish()


if __name__ == "__main__":
    main()
