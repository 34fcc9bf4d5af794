"""A run directory of any number of episodes, for the viewer: scripted policies, written as training writes.

A policy's chance to solve a task grows with its weights version and falls with the difficulty of the family. Episodes
have painted screens, actions, call graphs with real token ids, judged clauses, milestones, errors and forks; groups,
steps, evaluations and alerts are those of such a run. No model runs. Used by `benchmarks.viewer` and by tests.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from tokenizers import Tokenizer

from deskhand.actions.ops import Click, Done, Drag, Op, Point, Type, screen_px
from deskhand.agents.episode_context import Step, Transcript
from deskhand.models.tiny import architecture
from deskhand.recorder.graph import Call, CallGraph
from deskhand.rollout.episode_counts import EpisodeCounts
from deskhand.rollout.episode_record import EpisodeResult, to_record
from deskhand.rollout.run_writer import row_of
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, GroupRow, Run
from deskhand.tasks.outcome import Errored, Finding, Scored
from deskhand.types import Completion, ImageSpan

FAMILIES = ("form_fill", "file_rename", "sheet_sum", "terminal_run", "mail_reply", "settings_switch")
CONFIG = {
    "model": "tiny",
    "seed": 0,
    "trainer": {"algorithm": "grpo", "learning_rate": 1e-4},
    "loop": {"group_size": 8},
}
WIDTH, HEIGHT = 320, 200
GROUP_SIZE, GROUPS_PER_STEP = 8, 4
IMAGE_TOKENS = 12
NUM_SCREENS = 64
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
"""Text of a guest that would run if it ever became markup."""


@dataclass
class _Writer:
    run: Run
    random: random.Random
    tokenizer: Any
    counts: EpisodeCounts
    screens: list[str]
    clock_s: float = 1_790_000_000.0
    number: int = 0


def generate(
    folder: Path, episodes: int, *, steps: int = 4, seed: int = 0, config: dict[str, Any] | None = None
) -> Path:
    """Write a run with this many training episodes of `steps` steps or fewer, and evaluations; return its folder."""
    run = Run.create(folder, {"title": "Generated run", "facts": {"command": "generated"}, "config": config or CONFIG})
    with run:
        extend(run, episodes, steps=steps, seed=seed)
    return folder


def extend(run: Run, episodes: int, *, steps: int = 4, seed: int = 0) -> list[str]:
    """Add training episodes to a run, as a process that trains does; return the ids of all new episodes."""
    tokenizer = Tokenizer.from_file(str(Path(architecture.__file__).parent / "weights" / "tokenizer.json"))
    writer = _Writer(run, random.Random(seed), tokenizer, EpisodeCounts.from_dict(run.episode_counts()), [])
    writer.number = len(run.episodes())
    writer.screens = [_put_screen(run, number) for number in range(NUM_SCREENS)]
    added, first_step = [], len(run.metrics())
    if not first_step:
        added += _evaluate(writer, 0, min(48, episodes), steps)
    num_groups = -(-episodes // GROUP_SIZE)
    for step in range(-(-num_groups // GROUPS_PER_STEP)):
        groups = range(step * GROUPS_PER_STEP, min((step + 1) * GROUPS_PER_STEP, num_groups))
        added += _train_step(
            writer, first_step + step, [min(GROUP_SIZE, episodes - GROUP_SIZE * at) for at in groups], steps
        )
    added += _evaluate(writer, len(run.metrics()), min(48, episodes), steps)
    return added


def _put_screen(run: Run, number: int) -> str:
    """Store a painted screenshot and return its name, the SHA-256 of its pixels."""
    image = Image.new("RGB", (WIDTH, HEIGHT), (58, 110, 165))
    draw = ImageDraw.Draw(image)
    left, top = 20 + 9 * (number % 16), 16 + 11 * (number % 7)
    draw.rectangle((left, top, left + 140, top + 100), fill=(240, 240, 236), outline=(80, 80, 80))
    draw.text((left + 8, top + 8), f"File  Edit  View  {number}", fill=(20, 20, 20))
    draw.rectangle((left + 80, top + 76, left + 132, top + 94), fill=(205, 225, 250), outline=(60, 90, 140))
    draw.text((left + 94, top + 80), "Save", fill=(20, 20, 20))
    pixels = np.asarray(image)
    name = hashlib.sha256(pixels.tobytes()).hexdigest()
    run.frames.put(name, pixels)
    return name


def _train_step(writer: _Writer, step: int, sizes: list[int], steps: int) -> list[str]:
    run, states, closed, added = writer.run, dict[str, tuple[str, int | None]](), [], []
    rewards: list[float] = []
    for size in sizes:
        number = len(run.groups())
        family = FAMILIES[number % len(FAMILIES)]
        group = GroupRow(f"{number:08x}{writer.random.getrandbits(96):024x}", number, family, number, "open")
        run.open_group(group)
        results = [_play(writer, TRAIN, family, number, member, step, steps, group.id) for member in range(size)]
        scored = [result for result in results if result.reward is not None]
        flat = len({result.reward for result in scored}) < 2
        for at, result in enumerate(results):
            last = at == len(results) - 1
            zero_variance = [one.episode_id for one in scored] if last and flat else []
            _finish(writer, result, zero_variance, (group.id, "closed" if flat else "queued") if last else None)
        if not flat:
            states |= {result.episode_id: ("trained", step + 1) for result in scored}
            closed.append(group.id)
        rewards += [result.reward for result in scored if result.reward is not None]
        added += [result.episode_id for result in results]
    writer.counts.mark_done(trained=len(states))
    path = run.folder / "checkpoints" / f"step-{step + 1:06d}"
    point = Checkpoint(step + 1, step + 1, path, writer.clock_s)
    metrics = _metrics(writer, step, rewards, len(states))
    run.commit(counts=writer.counts.to_dict(), states=states, closed_groups=closed, checkpoint=point, metrics=[metrics])
    return added


def _metrics(writer: _Writer, step: int, rewards: list[float], trained: int) -> dict[str, Any]:
    entropy = 0.9 / (1 + 0.05 * step)
    alerts = [] if step % 9 != 4 else [
        {"metric": "train/entropy", "value": entropy, "threshold": ">= 0.5", "cause": "replies hardly vary",
         "hint": "lower trainer.learning_rate"}
    ]  # fmt: skip
    return {
        "schema_version": 2, "step": step + 1, "version": step + 1, "reward/mean": sum(rewards) / max(1, len(rewards)),
        "reward/success_rate": sum(reward >= 1 for reward in rewards) / max(1, len(rewards)),
        "policy/staleness": writer.random.random(), "train/entropy": entropy,
        "train/grad_norm": 1 + writer.random.random(), "train/num_episodes": trained,
        "time/elapsed": 30.0 * (step + 1), "time/train_step": 12.0, "time/rollout_wait": 9.0,
        "perf/episodes_per_minute": 60.0, "alerts": alerts,
    }  # fmt: skip


def _evaluate(writer: _Writer, version: int, count: int, steps: int) -> list[str]:
    added = []
    for at in range(count):
        family = FAMILIES[at % len(FAMILIES)]
        result = _play(writer, f"version-{version}", family, 10**9 + at, 0, version, steps, None)
        record, tensors = to_record(result)
        state = "scored" if result.reward is not None else "errored"
        writer.run.finish_episode(replace(row_of(result, "", state), finished_at=writer.clock_s), record, tensors)
        added.append(result.episode_id)
    return added


def _finish(writer: _Writer, result: EpisodeResult, zero_variance: list[str], group: tuple[str, str] | None) -> None:
    if isinstance(result.outcome, Scored):
        writer.counts.mark_scored()
    else:
        writer.counts.mark_errored(result.outcome.cause)
    writer.counts.mark_done(zero_variance=len(zero_variance))
    record, tensors = to_record(result)
    row = replace(
        row_of(result, TRAIN, "queued" if result.reward is not None else "errored"), finished_at=writer.clock_s
    )
    states = [(name, "zero_variance") for name in zero_variance]
    writer.run.finish_episode(row, record, tensors, counts=writer.counts.to_dict(), states=states, group=group)


def _play(
    writer: _Writer, phase: str, family: str, seed: int, member: int, version: int, steps: int, group: str | None
) -> EpisodeResult:
    """Start an episode and return its result, played by the policy of this version."""
    rng = writer.random
    name, task_id = f"{writer.number:08x}{rng.getrandbits(96):024x}", f"generated/{family}/{seed}"
    writer.number += 1
    writer.clock_s += 0.8
    row = EpisodeRow(name, phase, group, member, task_id, family, seed, "train", "in_flight", started_at=writer.clock_s)
    if phase == TRAIN:
        writer.counts.start()
    writer.run.start_episode(row, writer.counts.to_dict() if phase == TRAIN else None)
    chance = min(0.9, 0.25 + 0.02 * version) - 0.08 * (FAMILIES.index(family) % 3)
    outcome_is_errored, is_solved = rng.random() < 0.03, rng.random() < chance
    saved = is_solved or rng.random() < 0.5
    played = list(_steps(writer, name, family, rng.randint(max(1, steps - 2), steps), seed))
    calls = list(_calls(writer, name, version, [step for step, _ in played]))
    if outcome_is_errored:
        outcome: Scored | Errored = Errored("infrastructure", "the desktop server did not answer within 120 s")
    else:
        read = "Quarterly report" if is_solved else (HOSTILE if seed % 5 == 0 else "Quartely report")
        findings = (
            Finding("the title of the document", float(is_solved), read, "Quarterly report"),
            Finding("the file is saved", float(saved), "report.odt" if saved else "no file", "report.odt"),
        )
        outcome = Scored(float(is_solved), {"end_state": float(is_solved), "milestone: opened": 1.0}, False, findings)
    reward = None if outcome_is_errored else max(float(is_solved), 0.2 + 0.2 * saved)
    return EpisodeResult(
        episode_id=name, task_id=task_id, family=family, seed=seed, split="train" if group else "test", group_id=group,
        member=member, outcome=outcome, reward=reward,
        reward_terms={} if reward is None else {"final": float(is_solved), "milestones": 0.2, "baseline": 0.0},
        transcript=Transcript(
            tuple(step for step, _ in played), "done" if is_solved else "max_steps", played[-1][1], 1.5
        ),
        graph=CallGraph(calls), first_click_on_target=None if reward is None else is_solved,
        seconds={"reset": 0.1, "setup": 0.8, "solve": 2.4, "model": 1.5, "judge": 0.5, "quota_wait": 0.0, "total": 3.8},
        version_min=version, version_max=version, target=(100, 92, 152, 110), milestone_steps={"opened": 0},
        instruction=f"Rename the document to Quarterly report and save it ({family} {seed})",
    )  # fmt: skip


def _steps(writer: _Writer, name: str, family: str, count: int, seed: int) -> Iterator[tuple[Step, str]]:
    """Yield the steps and the screen after each."""
    rng, space = writer.random, screen_px(WIDTH, HEIGHT)
    screen = writer.screens[seed % NUM_SCREENS]
    for index in range(count):
        x, y = 40 + rng.randrange(220), 30 + rng.randrange(140)
        kind = rng.randrange(4) if index else 0
        ops: tuple[Op, ...] = (Click(Point(x, y, space)),)
        if kind == 1:
            ops = (Type("Quarterly report\n"),)
        elif kind == 2:
            ops = (Drag((Point(x, y, space), Point(x + 40, y + 20, space))),)
        error = "not JSON: Expecting ',' delimiter" if index and rng.random() < 0.05 else None
        ops = () if error else (*ops, Done()) if index == count - 1 else ops
        after = screen if error else writer.screens[rng.randrange(NUM_SCREENS)]
        text = HOSTILE if error else f'{{"op":"click","x":{x},"y":{y}}}'
        changed = None if error else (max(0, x - 30), max(0, y - 20), x + 30, y + 20)
        yield Step(index, text, ops, error, screen, f"{name}.{index}", 80.0, changed, "format" if error else ""), after
        screen = after


def _calls(writer: _Writer, name: str, version: int, steps: list[Step]) -> Iterator[Call]:
    """Yield the model calls; one in five episodes forks where its window of screenshots moves."""
    encode, parent = (lambda text: tuple(writer.tokenizer.encode(text, add_special_tokens=False).ids)), None
    pad = writer.tokenizer.token_to_id("<|image_pad|>")
    forks = writer.random.random() < 0.2
    for step in steps:
        if forks and step.index == len(steps) // 2:
            parent = None
        before = parent.end_ids if parent else encode("<|im_start|>system\nUse the computer.<|im_end|>\n")
        head = before + encode(f"{chr(10) if parent else ''}<|im_start|>user\n<|vision_start|>")
        tail = encode("<|vision_end|>Rename the document<|im_end|>\n<|im_start|>assistant\n")
        prompt = head + (pad,) * IMAGE_TOKENS + tail
        spans = (*(parent.spans if parent else ()), ImageSpan(len(head), IMAGE_TOKENS, step.frame_sha256))
        sampled = encode(f"{step.text[:60]}<|im_end|>")
        logprobs = tuple(-2.5 * writer.random.random() ** 3 for _ in sampled)
        top = tuple(((token, logprob), (0, -3.0)) for token, logprob in zip(sampled, logprobs, strict=True))
        done = Completion(sampled, logprobs, (version,) * len(sampled), "stop", prompt, top)
        parent = Call(step.call_id, parent.id if parent else None, prompt, spans, done, 1.0, step.text)
        yield parent
