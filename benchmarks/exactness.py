"""Agreement of trainer and engine: `python -m benchmarks.exactness [--full] [--model DIR]`.

Episodes on local desktops are recorded at temperature 1 through the OpenAI endpoint, with a history that grows to 4
turns and drops to 2 (so that the call graph forks), while the engine batches other clients. Then, with the same
float32 weights:

- log-probs of the sampled tokens, trainer against engine;
- gradient of one GRPO step, merged sequences (a chain of calls is one sequence) against one sequence per call.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

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


async def measure(
    source: str, folder: Path, *, episodes: int, turns: int, desktops: int = 2, bystanders: int = 2
) -> Exactness:
    """Record episodes, then compare."""
    tasks = held_out_tasks(episodes)
    recording = await record(source, tasks, folder, desktops=desktops, agent=AGENT, turns=turns, bystanders=bystanders)
    return await asyncio.to_thread(compare, source, recording)


def compare(source: str, recording: Recording) -> Exactness:
    """Compare engine and trainer, and merged and unmerged sequences."""
    graphs = [result.graph for result in recording.results]
    policy = Policy(load(source).model, banned_ids=recording.renderer.banned_ids)
    rows = [row for graph in graphs for row in graph.sequences()]
    differences = logprob_differences(policy, rows, recording)
    merged, single = (gradient(source, recording, merge) for merge in (True, False))
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
        cosine=float(torch.nn.functional.cosine_similarity(merged, single, dim=0)),
    )


def logprob_differences(policy: Policy, rows: list[Sequence], recording: Recording) -> np.ndarray:
    """Return trainer minus engine log-probs of every sampled token, float64[tokens]."""
    found = policy.logprobs(rows, recording.images)
    stated = [np.asarray(row.logprobs)[np.asarray(row.loss_mask)] for row in rows]
    return np.concatenate([new.astype(np.float64) - old for new, old in zip(found, stated, strict=True)])


def gradient(source: str, recording: Recording, merge: bool) -> torch.Tensor:
    """The gradient of one step of the trainer on all episodes, half of them praised and half blamed,
    float64[parameters].

    It is read from the optimizer: its first moment after one step from zero is the gradient times a constant.
    """
    trainer = Trainer(Policy(load(source).model, banned_ids=recording.renderer.banned_ids))
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


def judge(found: Exactness, thresholds: Thresholds) -> None:
    """Check the results against the thresholds."""
    print(f"{found.episodes} episodes, {found.images} screenshots, {found.tokens} sampled tokens, {found.forks} forks")
    thresholds.check("turns an episode", found.fewest_turns >= 5, f"{found.fewest_turns} at least", ">= 5")
    thresholds.check("window forks", found.forks >= found.episodes, f"{found.forks}", "one an episode")
    thresholds.check(
        "engine batched others", found.rows_per_pass > 1, f"{found.rows_per_pass:.2f} requests a pass", "> 1"
    )
    thresholds.check(
        "log-probs", found.largest_difference < 1e-3, f"max |difference| {found.largest_difference:.2e} nat", "< 1e-3"
    )
    thresholds.check("KL estimate", found.kl < 1e-6, f"mean {found.kl:.2e} nat", "< 1e-6")
    rows = f"{found.merged_rows} rows against {found.single_rows}"
    thresholds.check("merged gradient", found.cosine > 0.9999, f"cosine {found.cosine:.8f}, {rows}", "> 0.9999")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="tiny")
    options = parser.parse_args()
    print_head()
    sizes = {
        "smoke": {"episodes": 1, "turns": 5, "bystanders": 1},
        "small": {"episodes": 4, "turns": 6},
        "full": {"episodes": 24, "turns": 8, "desktops": 4, "bystanders": 4},
    }[options.size]
    with tempfile.TemporaryDirectory(prefix="deskhand-exactness-") as folder:
        found = asyncio.run(measure(options.model, Path(folder), **sizes))
    thresholds = Thresholds()
    judge(found, thresholds)
    thresholds.finish()


if __name__ == "__main__":
    main()
