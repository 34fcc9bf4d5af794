"""Duration of a GRPO step of the bundled policy: `python -m benchmarks.training`.

Random 256x192 screens (48 image tokens each); groups of 8 episodes that share their first screenshot. Prints the time
of a step and its parts, and the ratio to a plain step in the same run: one sequence per call, images encoded per
sequence, transformers' own forward pass.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.thresholds import parser_of, print_head
from deskhand.config.trainer import PolicyConfig, TrainerConfig
from deskhand.models.load import load
from deskhand.recorder.graph import Call, CallGraph, Sequence
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.vision_features import VisionFeatureCache
from deskhand.types import Completion, ImageSpan, PreparedImage

GRID = (1, 12, 16)
IMAGE_TOKENS = 48
WORDS, REPLY = 14, 6
"""Text tokens around a screenshot, and sampled tokens of a turn."""


def screenshot(seed: int) -> PreparedImage:
    """Return random pixels of a 256x192 screen."""
    pixels = np.random.default_rng(seed).standard_normal((192, 3 * 2 * 16 * 16)).astype(np.float32)
    return PreparedImage(hashlib.sha256(pixels.tobytes()).hexdigest(), pixels, GRID, IMAGE_TOKENS, 256, 192)


def episodes(count: int, turns: int, model) -> tuple[list[CallGraph], dict[str, PreparedImage]]:
    """Return call graphs with synthetic log-probs; eight episodes share a first screenshot."""
    random, config = np.random.default_rng(0), model.config
    graphs, images = [], {}
    for episode in range(count):
        graph, ids, spans, parent = CallGraph(), (), (), None
        for turn in range(turns):
            image = screenshot(episode // 8 if turn == 0 else 1000 + 10 * episode + turn)
            images[image.sha256] = image
            spans = (*spans, ImageSpan(len(ids) + 4, IMAGE_TOKENS, image.sha256))
            words = tuple(int(word) for word in random.integers(0, 200, WORDS))
            ids = (*ids, 1, 2, 3, config.vision_start_token_id, *(config.image_token_id,) * IMAGE_TOKENS, *words)
            reply = tuple(int(word) for word in random.integers(0, 200, REPLY))
            done = Completion(reply, (-3.0,) * REPLY, (0,) * REPLY, "stop", ids)
            graph.add(Call(f"{episode}-{turn}", parent, ids, spans, done))
            parent, ids = f"{episode}-{turn}", ids + reply
        graphs.append(graph)
    return graphs, images


def best(function: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the minimum wall and CPU seconds after a warm-up call. CPU time is robust on shared machines."""
    function()
    wall, processor = [], []
    for _ in range(repeats):
        started, busy = time.perf_counter(), time.process_time()
        function()
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - busy)
    return min(wall), min(processor)


def plain_step(model, rows: list[Sequence], images: dict[str, PreparedImage], at_a_time: int = 16) -> None:
    """Run forward and backward with the checkpoint's own code, encoding the images of each sequence."""
    model.zero_grad(set_to_none=True)
    for start in range(0, len(rows), at_a_time):
        part = rows[start : start + at_a_time]
        longest = max(len(row.token_ids) for row in part)
        ids_BT = torch.tensor([list(row.token_ids) + [0] * (longest - len(row.token_ids)) for row in part])
        shown = [images[span.sha256] for row in part for span in row.spans]
        sampled_BT = torch.tensor([list(row.sampled) + [False] * (longest - len(row.sampled)) for row in part])
        logits_BTV = model(
            input_ids=ids_BT,
            attention_mask=torch.tensor(
                [[1] * len(row.token_ids) + [0] * (longest - len(row.token_ids)) for row in part]
            ),
            pixel_values=torch.cat([torch.from_numpy(image.pixel_values) for image in shown]),
            image_grid_thw=torch.tensor([image.grid_thw for image in shown]),
            mm_token_type_ids=(ids_BT == model.config.image_token_id).int(),
        ).logits
        logprobs_BTV = torch.log_softmax(logits_BTV[:, :-1].float(), -1)
        logprobs_BT = logprobs_BTV.gather(2, ids_BT[:, 1:, None])[..., 0]
        (-logprobs_BT[sampled_BT[:, 1:]].sum() / len(rows)).backward()


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=PolicyConfig().max_tokens_per_mb)
    arguments = parser.parse_args()
    if arguments.size == "smoke":
        arguments.episodes, arguments.repeats = 4, 1
    torch.set_num_threads(arguments.threads)
    model = load("tiny").model
    graphs, images = episodes(arguments.episodes, arguments.turns, model)
    policy = Policy(model, PolicyConfig(max_tokens_per_mb=arguments.batch_tokens))
    trainer = Trainer(policy, TrainerConfig(learning_rate=1e-6, importance_weight_cap=None))
    rows = [sequence for graph in graphs for sequence in graph.sequences()]
    single = [sequence for graph in graphs for sequence in graph.sequences(merge=False)]
    samples = [
        TrainingSample(sequence, 1.0 if number % 2 else -1.0, str(number))
        for number, graph in enumerate(graphs)
        for sequence in graph.sequences()
    ]
    tokens = sum(len(row.token_ids) for row in rows)
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print_head()
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), {millions:.1f} M parameters")
    print(
        f"{len(graphs)} episodes of {arguments.turns} turns: {len(rows)} merged rows, {tokens} "
        f"tokens, {len(images)} unique images"
    )

    def tower() -> None:
        VisionFeatureCache(model, images, policy.config.max_vision_patches_per_mb, gradients=False)

    def forward() -> None:
        policy.logprobs(rows, images)

    def step() -> None:
        metrics = trainer.step(samples, images)
        assert metrics.num_updates == 1
        assert metrics.num_tokens == sum(graph.num_sampled_tokens for graph in graphs)

    parts = {
        "plain step": best(lambda: plain_step(model, single, images), arguments.repeats),
        "step": best(step, arguments.repeats),
        "forward pass": best(forward, arguments.repeats),
        "vision tower": best(tower, arguments.repeats),
        "rows checked and packed": best(lambda: policy.plan(rows, images), arguments.repeats),
    }
    for name, (wall, processor) in parts.items():
        print(f"{name:24s} {wall:7.3f} s, {processor:7.3f} s of processor")
    (wall, processor), plain, forward_only = parts["step"], parts["plain step"], parts["forward pass"]
    print(f"backward pass and update, by difference: {processor - forward_only[1]:.2f} s of processor")
    print(f"{len(rows) / wall:.1f} samples/s, {tokens / wall:.0f} tokens/s, {len(images) / wall:.1f} screenshots/s")
    print(
        f"the plain step ({len(single)} rows, images encoded row by row) takes {plain[1] / processor:.2f} times the "
        "processor time"
    )


if __name__ == "__main__":
    main()
