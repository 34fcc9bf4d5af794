"""Rollout and training on one GPU: `python -m benchmarks.gpu --full`.

Qwen3-VL-4B shapes with random weights, first with LoRA, then training all language-model weights: agents on local
desktops call the engine, their episodes are trained on, and weights are synchronized. Screens are 1280x720 and all
different. Printed per mode: episodes per minute, tokens sampled and trained per second, MFU, seconds to synchronize
weights, and peak memory against the estimate. Without --full the shapes are tiny and run on the CPU, which only shows
that the command works.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch

from benchmarks.adapter_files import time_adapter_files
from benchmarks.peak_memory import peak_bytes
from benchmarks.thresholds import Thresholds, parser_of, print_head
from deskhand.actions.ops import REL_1000, Click, Op, Point
from deskhand.agents.desktop_agent import AgentConfig, DesktopAgent
from deskhand.config.schema import EngineConfig
from deskhand.config.trainer import LoraConfig, PolicyConfig, TrainerConfig
from deskhand.desktop.pool import DesktopPool
from deskhand.engines.hf import EngineStats, HfEngine
from deskhand.models import architectures
from deskhand.models.families import FAMILIES
from deskhand.models.load import LoadedModel
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recipes.tiny.build import corpus
from deskhand.recorder.graph import Sequence
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.rollout.episode_record import EpisodeResult
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.runner import RecordedRunner
from deskhand.tasks.suites import basics
from deskhand.tasks.task import Task, seed_for
from deskhand.trainer.batch import TrainingSample
from deskhand.trainer.memory_estimate import GIB, MIB, MemoryEstimate, Workload, count, estimate_memory
from deskhand.trainer.policy import Policy
from deskhand.trainer.throughput_estimate import device_of, operations
from deskhand.trainer.trainer import Trainer
from deskhand.trainer.weight_sync import attach_engine, push_weights

FAMILY = "terminal_run"
ENGINE_IMAGE_TOKENS = 8192
TRAINERS = (
    "weights",
    "masters",
    "gradients",
    "moments",
    "activations",
    "logits",
    "backward peak",
    "image features",
    "vision tower",
)
"""Terms that are measured on a processor: those of the trainer's thread. A GPU's allocator sees all tensors."""
TOLERANCE = 0.10
"""How far the measured peak may be from the planner's sum."""


@dataclass(frozen=True)
class Size:
    """Amount of work."""

    device: str
    dtype: str
    screen: tuple[int, int]
    turns: int
    reply_tokens: int
    grow_to: int
    episodes: int
    desktops: int
    max_tokens_per_mb: int
    values: dict[str, Any]


def tiny_values() -> dict[str, Any]:
    """Return Qwen3-VL-4B's architecture at tiny sizes."""
    text, vision = architectures.QWEN3_VL_4B["text_config"], architectures.QWEN3_VL_4B["vision_config"]
    rope = {**text["rope_parameters"], "mrope_section": [6, 5, 5]}
    text = {
        **text,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 32,
        "rope_parameters": rope,
    }
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2048}
    vision = {**vision, "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    vision |= {"deepstack_visual_indexes": [0]}
    return {**architectures.QWEN3_VL_4B, "text_config": text, "vision_config": vision}


FULL = Size("cuda:0", "bfloat16", (1280, 720), 12, 48, 6, 12, 12, 8192, architectures.QWEN3_VL_4B)
SMALL = Size("cpu", "float32", (256, 192), 3, 4, 2, 4, 2, 2048, tiny_values())
MODES = {"lora": PolicyConfig(lora=LoraConfig(rank=64), gradient_checkpointing=True),
         "full": PolicyConfig(train_vision=False, gradient_checkpointing=True)}  # fmt: skip


class AnyClick:
    """Format that reads every text as a click, so that a random model plays whole episodes."""

    name = "any_click"

    @staticmethod
    def parse(text: str, view: object) -> list[Op]:
        place = crc32(text.encode("utf-8", "replace"))
        return [Click(Point(place % 1000, place // 1000 % 1000, REL_1000))]


class Babbler(DesktopAgent):
    """Agent that accepts truncated replies."""

    async def _act(self, episode: Any, view: Any, text: str, call_id: str, truncated: bool) -> Any:
        return await super()._act(episode, view, text, call_id, truncated=False)


def loaded(size: Size) -> LoadedModel:
    """Return the model with random weights, and the bundled policy's tokenizer."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer = build_tokenizer(corpus((FAMILY,)))
    token: Any = tokenizer.convert_tokens_to_ids
    ids = {"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>")}
    ids |= {"vision_start_token_id": token("<|vision_start|>"), "vision_end_token_id": token("<|vision_end|>")}
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, size.dtype))
    try:
        with torch.device(size.device):
            model = architectures.build({**size.values, **ids})
    finally:
        torch.set_default_dtype(before)
    vision = size.values["vision_config"]
    least, most = FAMILIES["qwen3_vl"].image_area if size.device != "cpu" else (32 * 32, 2**20)
    processor = Qwen2VLImageProcessorPil(
        patch_size=vision["patch_size"],
        merge_size=vision["spatial_merge_size"],
        temporal_patch_size=vision["temporal_patch_size"],
        size={"shortest_edge": least, "longest_edge": most},
    )
    return LoadedModel(model, tokenizer, processor, "qwen3_vl", "random weights")


def task_of(size: Size, number: int) -> Task:
    """Return a task of the suite on another screen size, with a fixed number of steps."""
    made = basics.make_task(FAMILY, seed_for("train", number))
    return dataclasses.replace(made, width=size.screen[0], height=size.screen[1], max_steps=size.turns)


@asynccontextmanager
async def playing(
    size: Size, model: LoadedModel, engine: HfEngine
) -> AsyncIterator[tuple[RecordedRunner, ImageCache, tuple[int, ...]]]:
    """Yield agents on desktops; every screenshot is different noise."""
    renderer = ChatRenderer(model.tokenizer)
    images = ImageCache(model.image_processor, prepared_bytes=32 << 30)
    recorder = Recorder(renderer, engine, images)
    agent = Babbler(
        AgentConfig(
            history_max_turns=size.grow_to,
            history_keep_turns=max(1, size.grow_to // 2),
            max_new_tokens=size.reply_tokens,
            noise_images=True,
        ),
        action_format=AnyClick(),  # type: ignore[arg-type]
    )
    async with DesktopPool(size.desktops, prewarm=0) as pool:
        runner = RecordedRunner(pool, recorder, agent)
        try:
            yield runner, images, renderer.banned_ids
        finally:
            await runner.close()
            recorder.close()


async def play(size: Size, runner: RecordedRunner, first: int, count: int) -> list[EpisodeResult]:
    """Play episodes from number `first` on, one per desktop concurrently."""
    places = asyncio.Semaphore(size.desktops)

    async def one(number: int) -> EpisodeResult:
        async with places:
            return await runner.run(EpisodeRequest(f"episode-{number}", task_of(size, number)))

    return await asyncio.gather(*(one(first + number) for number in range(count)))


def predicted(
    size: Size,
    config: PolicyConfig,
    trainer: TrainerConfig,
    rows: list[Sequence],
    images: ImageCache,
    sizes: dict[str, int],
) -> tuple[MemoryEstimate, Workload]:
    """Return the memory estimate for the episodes played, with the engine's own `sizes`."""
    shown = {span.sha256: images[span.sha256] for row in rows for span in row.spans}
    largest = max(shown.values(), key=lambda image: image.tokens)
    longest = max(len(row.token_ids) for row in rows)
    work = Workload(
        width=size.screen[0],
        height=size.screen[1],
        patches=len(largest.pixel_values),
        image_tokens=largest.tokens,
        turns=size.turns,
        turns_in_row=max(len(row.spans) for row in rows),
        row_tokens=longest,
        reply_tokens=size.reply_tokens,
        step_episodes=size.episodes,
        step_rows=len(rows),
        step_images=len(shown),
    )
    engine = EngineConfig(max_num_seqs=size.desktops, share_weights=True, **sizes)
    cuda = size.device != "cpu"
    return estimate_memory(
        size.values, size.dtype, config, trainer, engine, work, requests=size.desktops, cuda=cuda
    ), work


@dataclass(frozen=True)
class Found:
    """Measurements; token counts include prompts and screenshots, except `sampled`."""

    episodes: int
    play_s: float
    sampled: int
    tokens: int
    step_s: float
    publish_s: float
    apart_s: dict[str, float]
    """To publish to an engine with a copy of its own, by what it is given, the first time included in none."""
    peak: int
    plan: MemoryEstimate
    work: Workload


async def measure(size: Size, config: PolicyConfig) -> Found:
    """Play, train and synchronize; the second step is timed, and the peak is that of the third."""
    settings = TrainerConfig(learning_rate=1e-6, importance_weight_cap=None)
    model = loaded(size)
    longest = size.grow_to * ((size.screen[0] // 28) * (size.screen[1] // 28) + size.reply_tokens + 64) + 512
    sizes = {
        "max_model_len": longest,
        "max_num_batched_tokens": longest,
        "prefix_cache_tokens": 4 * longest,
        "image_cache_tokens": ENGINE_IMAGE_TOKENS,
    }
    engine = HfEngine(model, EngineConfig(max_num_seqs=size.desktops, **sizes))
    try:
        async with playing(size, model, engine) as (runner, images, banned):
            trainer = Trainer(Policy(model.model, config, banned), settings)
            attach_engine(trainer, engine)
            await play(size, runner, 1000, min(2, size.episodes))
            print("played the first episodes", flush=True)
            before, began = engine.stats, time.perf_counter()
            results = await play(size, runner, 0, size.episodes)
            play_s = time.perf_counter() - began
            print_play(len(results), play_s, before, engine.stats)
            sampled = engine.stats.decoded_tokens - before.decoded_tokens
            samples = [
                TrainingSample(row, 1.0 if number % 2 else -1.0, result.episode_id)
                for number, result in enumerate(results)
                for row in result.graph.sequences()
            ]
            await asyncio.to_thread(trainer.step, samples, images)
            await push_weights(trainer.policy, engine, 1)
            held = _held(size.device, trainer)
            seconds: list[float] = []

            def step() -> None:
                began = time.perf_counter()
                trainer.step(samples, images)
                seconds.append(time.perf_counter() - began)
                print(f"trained a step in {seconds[-1]:.2f} s", flush=True)

            await asyncio.to_thread(step)
            trainer.policy.known_features = None  # the estimate is of a step whose images the engine no longer has
            peak = held + await asyncio.to_thread(peak_bytes, step, size.device)
            began = time.perf_counter()
            await push_weights(trainer.policy, engine, 2)
            publish_s = time.perf_counter() - began
            apart_s = await apart(size, trainer.policy)
            rows = [sample.sequence for sample in samples]
            plan, work = predicted(size, config, settings, rows, images, sizes)
    finally:
        await engine.close()
    tokens = sum(len(row.token_ids) for row in rows)
    played = sum(bool(result.graph.calls) for result in results)
    return Found(played, play_s, sampled, tokens, seconds[0], publish_s, apart_s, peak, plan, work)


def print_play(episodes: int, seconds: float, before: EngineStats, after: EngineStats) -> None:
    """Print what the engine did in these seconds."""
    parts = [
        f"{getattr(after, f'{part}_s') - getattr(before, f'{part}_s'):.1f} s {part}"
        for part in ("vision", "prefill", "decode")
    ]
    steps, passes = after.decode_steps - before.decode_steps, after.prefills - before.prefills
    print(
        f"played {episodes} episodes in {seconds:.1f} s: {', '.join(parts)}; {steps} decoding steps, {passes} prefills"
    )


async def apart(size: Size, policy: Policy) -> dict[str, float]:
    """Return the seconds to synchronize full weights, and adapters alone, to a separate engine."""
    engine, found = HfEngine(loaded(size), EngineConfig(max_num_seqs=1, max_model_len=128, image_cache_tokens=1)), {}
    try:
        for version in (1, 2):  # the first time makes room
            began = time.perf_counter()
            await engine.update_weights(version, await asyncio.to_thread(policy.snapshot))
            found["whole weights"] = time.perf_counter() - began
            if policy.config.lora is not None:
                began = time.perf_counter()
                await push_weights(policy, engine, version)
                found["the adapter alone"] = time.perf_counter() - began
    finally:
        await engine.close()
    return found


def show(mode: str, size: Size, config: PolicyConfig, found: Found, thresholds: Thresholds) -> None:
    """Print the measurements next to the estimate."""
    plan, work, device = found.plan, found.work, device_of(size.device)
    done, peak_flops = operations(size.values, plan, work, adapters=config.lora is not None), device.flops(size.dtype)
    weights, trained = plan.traced.parameters + plan.tower.parameters, plan.traced.trained + plan.tower.trained
    print(f"\n{mode}: {count(weights)} weights, {count(trained)} trained")
    rate = 60 * found.episodes / found.play_s
    print(
        f"episodes/min: {rate:.1f} ({found.episodes} of {size.episodes}, {size.turns} turns each, "
        f"{size.desktops} at a time)"
    )
    print(f"sampled: {found.sampled / found.play_s:.0f} tokens/s")
    trained = f"{found.tokens} tokens and {work.step_images} screenshots in {found.step_s:.2f} s"
    print(f"trained: {found.tokens / found.step_s:.0f} tokens/s ({trained})")
    if peak_flops:
        share = done.total / (work.step_rows * work.row_tokens) * found.tokens / found.step_s / peak_flops
        print(
            f"MFU: {100 * share:.1f} % of {peak_flops / 1e12:.2f} TFLOP/s, what is computed a second time not counted"
        )
    print(f"publish: {1e3 * found.publish_s:.1f} ms to the engine that shares the weights")
    for what, seconds in found.apart_s.items():
        print(f"publish: {1e3 * seconds:.1f} ms, {what} to an engine with a copy of its own")
    print("\n".join(plan.lines()))
    seen = [term for term in plan.terms if term.place == "device" and (size.device != "cpu" or term.name in TRAINERS)]
    seen = [term for term in seen if term.name not in ("allocator", "CUDA")]
    least, most = sum(term.min_bytes for term in seen), sum(term.bytes for term in seen)
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    figures = f"measured peak {found.peak / unit:.3f} {name}, planned {least / unit:.3f} to {most / unit:.3f} {name}"
    kept = least * (1 - TOLERANCE) <= found.peak <= most * (1 + TOLERANCE)
    thresholds.check(
        f"{mode}: {figures}",
        kept,
        f"{100 * (found.peak / most - 1):+.1f} % of the most",
        f"within {100 * TOLERANCE:.0f} %",
    )


def _held(device: str, trainer: Trainer) -> int:
    """Return the bytes held before a step."""
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated(device)
    found = {
        id(tensor): tensor.nbytes
        for tensor in (*trainer.policy.model.parameters(), *trainer.policy.parameters().values())
    }
    found |= {id(value): value.nbytes for state in trainer.optimizer.state.values() for value in state.values()}
    return sum(found.values())


def main() -> None:
    parser = parser_of(__doc__, "Qwen3-VL-4B on cuda:0, where there is one")
    parser.add_argument("--only", choices=sorted(MODES))
    arguments = parser.parse_args()
    print_head()
    size = FULL if arguments.size == "full" and torch.cuda.is_available() else SMALL
    if size is SMALL:
        torch.set_num_threads(1)
        print("no GPU is used: tiny shapes on the processor, which show that the command works and nothing of a GPU")
    else:
        print(f"device:   {torch.cuda.get_device_name(0)}")
    thresholds = Thresholds()
    for mode in [arguments.only] if arguments.only else MODES:
        config = MODES[mode].model_copy(update={"max_tokens_per_mb": size.max_tokens_per_mb})
        show(mode, size, config, asyncio.run(measure(size, config)), thresholds)
    time_adapter_files(64)
    thresholds.finish()


if __name__ == "__main__":
    main()
