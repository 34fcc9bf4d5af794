"""The bugs of rows 20 to 27, by area: what is replaced, by what, and the test that notices it.

Used by `fault_rows.training`. A replacement calls the original function and changes its result, as a mistake in a
refactoring would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from deskhand.agents.desktop_agent import AgentConfig
from deskhand.algorithms import grpo
from deskhand.engines.hf import decode_batch, decode_request, prefix_cache
from deskhand.models import forward
from deskhand.recipes import samples, training_loop
from deskhand.recorder import graph, images
from deskhand.recorder.renderer import ChatRenderer, _PromptBuilder
from deskhand.rollout import episode
from deskhand.tasks.outcome import Scored
from deskhand.trainer import checkpoint, policy, trainer
from deskhand.types import LoraWeights

Case = dict[str, Any]


def _rendering() -> list[Case]:
    decode, put_parts, image = images.decode_rgb, ChatRenderer._put_parts, _PromptBuilder.image
    encode = forward.encode_images

    def swapped(encoded: bytes, **options: Any) -> np.ndarray:
        return np.ascontiguousarray(decode(encoded, **options)[..., ::-1])

    def without_images(renderer: Any, line: Any, parts: Any) -> None:
        put_parts(renderer, line, tuple(part for part in parts if isinstance(part, str)) or ("-",))

    def expanded_twice(line: Any, sha256: str) -> None:
        image(line, sha256)
        count = line.images[sha256].tokens - 1 if line.images is not None else 0
        line.token_ids.extend([line.renderer.image_id] * count)

    def retokenized(renderer: Any, line: Any, token_ids: tuple[int, ...]) -> None:
        line.text(renderer.text_of(token_ids))
        line.special(renderer.end_id)
        line.text("\n")

    def last_lost(model: Any, *given: Any) -> tuple[Any, ...]:
        halves = [(layer[: -len(layer) // 2], layer[-len(layer) // 2 :]) for layer in encode(model, *given)]
        return tuple(torch.cat([first, torch.zeros_like(second)]) for first, second in halves)

    recorder = "tests/faults/test_recorder_faults.py"
    return [
        {
            "name": "red and blue are swapped for engine and trainer alike",
            "patches": [(images, "decode_rgb", swapped)],
            "test": "tests/recorder/test_images.py",
        },
        {
            "name": "pictures of a message are dropped",
            "patches": [(ChatRenderer, "_put_parts", without_images)],
            "test": recorder,
        },
        {
            "name": "placeholders are expanded twice",
            "patches": [(_PromptBuilder, "image", expanded_twice)],
            "test": recorder,
        },
        {
            "name": "the history is tokenized again",
            "patches": [(ChatRenderer, "_put_reply", retokenized)],
            "test": recorder,
        },
        {
            "name": "the engine loses half of an image's features",
            "patches": [(decode_batch, "encode_images", last_lost)],
            "test": "tests/engines/test_hf_engine.py",
        },
    ]


def _graph() -> list[Case]:
    sequence = graph._sequence

    def one_early(path: Any, trained: Any) -> Any:
        row = sequence(path, trained)
        return replace(row, loss_mask=(*row.loss_mask[1:], False))

    def forked_twice(self: graph.CallGraph, merge: bool = True) -> list[Any]:
        paths = [self._path(node) for node in self._nodes.values()]
        return [sequence(path, {node.call.id for node in path}) for path in paths]

    def first_call_only(path: Any, trained: Any) -> Any:
        return sequence(path[:1], trained)

    def logprobs_late(path: Any, trained: Any) -> Any:
        row = sequence(path, trained)
        where = [at for at, marked in enumerate(row.loss_mask) if marked]
        values = dict(zip(where, [row.logprobs[at] for at in (where[-1], *where[:-1])], strict=True))
        return replace(row, logprobs=tuple(values.get(at, 0.0) for at in range(len(row.logprobs))))

    graphs = "tests/recorder/test_graph.py"
    return [
        {"name": "the loss mask is one token early", "patches": [(graph, "_sequence", one_early)], "test": graphs},
        {
            "name": "a forked prefix is trained twice",
            "patches": [(graph.CallGraph, "sequences", forked_twice)],
            "test": graphs,
        },
        {"name": "later calls of a chain are lost", "patches": [(graph, "_sequence", first_call_only)], "test": graphs},
        {"name": "log-probs are one token late", "patches": [(graph, "_sequence", logprobs_late)], "test": graphs},
    ]


def _batch() -> list[Case]:
    join, positions, advantages, weights = (
        forward.join_pixels,
        forward.positions,
        samples._advantages,
        trainer.token_weights,
    )

    def rotated(found: Any) -> Any:
        return join(found).roll(1, 0)

    def shifted(length: int, spans: Any, shown: Any, merge: int) -> Any:
        found, following = positions(length, spans, shown, merge)
        first = min((span.start + span.count for span in spans), default=length)
        found = found.copy()
        found[:, first:] += 1
        return found, following

    def reversed_order(algorithm: Any, rewards: np.ndarray) -> np.ndarray:
        return advantages(algorithm, rewards)[::-1]

    def per_microbatch(episodes: Any, counts: Any, worth: Any, *rest: Any, **named: Any) -> np.ndarray:
        return weights(episodes, counts, worth, *rest, **named) * max(1, len(set(episodes)) // 2)

    return [
        {
            "name": "the trainer shuffles the pictures",
            "patches": [(forward, "join_pixels", rotated)],
            "test": "tests/faults/test_recorder_faults.py",
        },
        {
            "name": "rotary positions after an image are off by one",
            "patches": [(forward, "positions", shifted)],
            "test": "tests/faults/test_recorder_faults.py",
        },
        {
            "name": "siblings get each other's advantages",
            "patches": [(samples, "_advantages", reversed_order)],
            "test": "tests/rollout/test_loop.py",
        },
        {
            "name": "token weights have the denominator of a micro-batch",
            "patches": [(trainer, "token_weights", per_microbatch)],
            "test": "tests/trainer/test_trainer.py",
        },
    ]


def _loss() -> list[Case]:
    grouped, clipped, softmax = grpo.group_advantages, trainer.clipped_loss, policy.log_softmax

    def negative(*given: Any, **named: Any) -> np.ndarray:
        return -grouped(*given, **named)

    def wrong_sign(*given: Any, **named: Any) -> Any:
        found = clipped(*given, **named)
        return replace(found, values=-found.values)

    def left_out(*given: Any, **named: Any) -> Any:
        found = clipped(*given, **named)
        kept = torch.ones_like(found.values)
        kept[::2] = 0.0
        return replace(found, values=found.values * kept)

    def no_temperature(logits: Any, temperature: float, banned: Any) -> Any:
        return softmax(logits, 1.0, banned)

    def no_ban(logits: Any, temperature: float, banned: Any) -> Any:
        return softmax(logits, temperature, ())

    return [
        {
            "name": "advantages have the wrong sign",
            "patches": [(grpo, "group_advantages", negative)],
            "test": "tests/algorithms/test_grpo.py",
        },
        {
            "name": "the loss has the wrong sign",
            "patches": [(trainer, "clipped_loss", wrong_sign)],
            "test": "tests/trainer/test_trainer.py",
        },
        {
            "name": "every second token is left out of the loss",
            "patches": [(trainer, "clipped_loss", left_out)],
            "test": "tests/trainer/test_trainer.py",
        },
        {
            "name": "the trainer ignores the temperature",
            "patches": [(policy, "log_softmax", no_temperature)],
            "test": "tests/trainer/test_policy.py",
            "options": {"agent": AgentConfig(max_new_tokens=3, temperature=0.7)},
        },
        {
            "name": "the trainer does not remove banned ids",
            "patches": [(policy, "log_softmax", no_ban)],
            "test": "tests/trainer/test_policy.py",
        },
    ]


def _publishing(lora: Case) -> list[Case]:
    extract, snapshot, take = policy.extract_lora, policy.Policy.snapshot, decode_batch.DecodeBatch._take
    kept: list[Any] = []

    def unscaled(model: Any, config: Any) -> LoraWeights:
        found = extract(model, config)
        return LoraWeights(found.weights, {**found.config, "lora_alpha": found.config["r"]})

    def not_loaded(self: Any, weights: Any, targets: Any) -> None:
        self.clear_caches(True)

    def incomplete(self: policy.Policy, device: str | None = None) -> Any:
        found = snapshot(self, device)
        return {name: value for name, value in found.items() if "layers.1.mlp" not in name}

    def one_update_late(self: policy.Policy, device: str | None = None) -> Any:
        kept.append({name: value.clone() for name, value in snapshot(self, device).items()})
        return kept[-2] if len(kept) > 1 else kept[-1]

    def rolled(self: Any, rows: Any, sampler: Any, logits: Any, version: int) -> None:
        take(self, rows, sampler, logits.roll(1, -1), version)

    return [
        {
            "name": "an adapter is published without its scale",
            "patches": [(policy, "extract_lora", unscaled)],
            "test": "tests/trainer/test_published_adapters.py",
            "options": lora,
        },
        {
            "name": "the engine keeps the old weights under a new version",
            "patches": [(decode_batch.DecodeBatch, "load_weights", not_loaded)],
            "test": "tests/engines/test_hf_engine.py",
        },
        {
            "name": "a layer is not sent to the engine",
            "patches": [(policy.Policy, "snapshot", incomplete)],
            "test": "tests/trainer/test_weight_sync.py",
        },
        {
            "name": "the engine is one update behind",
            "patches": [(policy.Policy, "snapshot", one_update_late)],
            "test": "tests/trainer/test_weight_sync.py",
            "steps": 4,
        },
        {
            "name": "the engine reads logits of another id",
            "patches": [(decode_batch.DecodeBatch, "_take", rolled)],
            "test": "tests/engines/test_hf_engine.py",
        },
    ]


def _cache() -> list[Case]:
    key_of, features = decode_request.key_of, decode_batch.DecodeBatch._image_features
    clear_caches = decode_batch.DecodeBatch.clear_caches

    def without_images(token_ids: Any, spans: Any) -> np.ndarray:
        return key_of(token_ids, ())

    def first_of_its_size(self: Any, pieces: Any) -> Any:
        known = self.__dict__.setdefault("_first", {})
        chosen = [(known.setdefault(shown.tokens, shown), skip) for shown, skip in pieces]
        return features(self, chosen)

    def keep_features(self: Any, vision_changed: bool) -> None:
        clear_caches(self, False)

    engine = "tests/engines/test_hf_engine.py"
    return [
        {
            "name": "keys and values of finished requests are kept across new weights",
            "patches": [(prefix_cache.PrefixCache, "clear", lambda self: None)],
            "test": engine,
        },
        {
            "name": "the prefix cache does not tell images apart",
            "patches": [(decode_request, "key_of", without_images)],
            "test": engine,
        },
        {
            "name": "image features are cached by their size",
            "patches": [(decode_batch.DecodeBatch, "_image_features", first_of_its_size)],
            "test": engine,
        },
        {
            "name": "image features are kept although the vision tower changed",
            "patches": [(decode_batch.DecodeBatch, "clear_caches", keep_features)],
            "test": engine,
        },
    ]


def _resume() -> list[Case]:
    push, restore = training_loop.push_weights, checkpoint._state_of

    async def version_only(trained: policy.Policy, engine: Any, version: int, *_: Any, **__: Any) -> None:
        weights = {"lm_head.weight": trained.snapshot()["lm_head.weight"]}
        await engine.update_weights(version, weights)
        training_loop.push_weights = push

    def no_moments(*given: Any) -> dict[str, Any]:
        return {}

    def zero_moments(*given: Any) -> dict[str, Any]:
        return {key: torch.zeros_like(torch.as_tensor(value)) for key, value in restore(*given).items()}

    return [
        {
            "name": "the engine is not given the restored weights",
            "patches": [(training_loop, "push_weights", version_only)],
            "test": "tests/rollout/test_resume.py",
            "resumes": True,
        },
        {
            "name": "the optimizer starts from scratch after a resume",
            "patches": [(checkpoint, "_state_of", no_moments)],
            "test": "tests/trainer/test_checkpoint.py",
            "resumes": True,
        },
        {
            "name": "the optimizer's moments are zero after a resume",
            "patches": [(checkpoint, "_state_of", zero_moments)],
            "test": "tests/trainer/test_checkpoint.py",
            "resumes": True,
        },
    ]


def _judge() -> list[Case]:
    judge: Callable[..., Any] = episode.judge
    scores: list[float] = []

    async def inverted(*given: Any, **named: Any) -> Any:
        found = await judge(*given, **named)
        return replace(found, value=1.0 - found.value, findings=()) if isinstance(found, Scored) else found

    async def always_zero(*given: Any, **named: Any) -> Any:
        found = await judge(*given, **named)
        return replace(found, value=0.0, findings=()) if isinstance(found, Scored) else found

    async def score_of_another(*given: Any, **named: Any) -> Any:
        found = await judge(*given, **named)
        if not isinstance(found, Scored):
            return found
        scores.append(found.value)
        return replace(found, value=scores[-2] if len(scores) > 1 else scores[-1])

    return [
        {
            "name": "the judge's score is inverted",
            "patches": [(episode, "judge", inverted)],
            "test": "tests/rollout/test_episode.py",
        },
        {
            "name": "the judge always says 0",
            "patches": [(episode, "judge", always_zero)],
            "test": "tests/rollout/test_episode.py",
            "unnoticed": "milestones still differ, and a policy that never succeeds looks the same",
        },
        {
            "name": "an episode gets the score of another one",
            "patches": [(episode, "judge", score_of_another)],
            "test": "tests/rollout/test_episode.py",
            "unnoticed": "the scores are plausible; noticed only when an episode that did nothing gets a 1",
        },
    ]


def table(lora: Case) -> dict[int, tuple[str, list[Case]]]:
    """Return the cases by row; `lora` are the options of a LoRA run."""
    return {
        20: ("bugs of rendering", _rendering()),
        21: ("bugs of the call graph", _graph()),
        22: ("bugs of the batch", _batch()),
        23: ("bugs of the loss", _loss()),
        24: ("bugs of publishing", _publishing(lora)),
        25: ("bugs of caches", _cache()),
        26: ("bugs of resuming", _resume()),
        27: ("bugs of the judge", _judge()),
    }
