"""The agent: look, ask the model, do. Invariant: model text reaches the desktop only through a dialect's `parse`, and what could
not be parsed or performed is told to the model, counted, and never becomes a silent wait or a "done".

It is ordinary client code: an `openai.AsyncOpenAI` client (make it with `max_retries=0`) and a `Desktop`. It neither leases
desktops nor judges; whoever calls it does.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import openai

from deskhand.actions import formats
from deskhand.actions.formats.base import ActionFormat, ScreenView
from deskhand.actions.ops import TERMINAL_OPS, Answer, Done, Op, Zoom
from deskhand.agents.from_config import window_of
from deskhand.agents.history import drop_older_half, summarize_dropped
from deskhand.agents.prompts import Turn, build_messages, png_data_uri
from deskhand.agents.seeding import call_seed
from deskhand.agents.text_observation import describe_screen
from deskhand.agents.zoom import crop_and_enlarge
from deskhand.config.schema import AgentConfig
from deskhand.desktop.base import Desktop, Frame
from deskhand.errors import AgentError, InfrastructureError, ParseError

MAX_STEPS = 10
MAX_DROPPED_TURNS = 30
"""Of the turns that the window dropped the model is told the latest."""
StopReason = Literal["done", "fail", "answer", "max_steps", "too_many_errors", "overflow", "truncated"]
ReplyError = Literal["", "format", "action", "truncated"]
"""What was wrong with a reply: not understood, not possible on this screen, or cut at the limit of tokens."""


@dataclass(frozen=True)
class Step:
    """One model call and what came of it."""

    index: int
    text: str
    ops: tuple[Op, ...]
    """What the text was parsed to; empty when it was not understood."""
    error: str | None
    """Why nothing was performed; None when the ops were performed."""
    frame_sha256: str
    """The screen that the model saw."""
    call_id: str
    settled_ms: float
    """Of the screen that followed; 0 when nothing was performed."""
    changed_bbox: tuple[int, int, int, int] | None
    reply_error: ReplyError = ""
    """The kind of `error`; empty when the ops were performed."""


@dataclass(frozen=True)
class Transcript:
    """The steps of one episode and why they ended. "truncated": the last allowed mistake was a reply cut at `max_tokens`;
    "overflow": the conversation no longer fitted the model."""

    steps: tuple[Step, ...]
    stop_reason: StopReason
    last_frame_sha256: str = ""
    """The screen at the end."""
    model_seconds: float = 0.0
    """Time spent waiting for the model."""
    answer: str | None = None

    @property
    def num_errors(self) -> int:
        """Replies that could not be parsed or performed."""
        return sum(step.error is not None for step in self.steps)

    @property
    def num_format_errors(self) -> int:
        """Whole replies that the dialect does not understand; cut ones do not count."""
        return sum(step.reply_error == "format" for step in self.steps)


AfterStep = Callable[[Step, Frame], Awaitable[None]]
OnFrame = Callable[[Frame], Awaitable[None]]


class DesktopAgent:
    """Plain asynchronous loop over `Desktop` and an OpenAI-compatible client.

    `action_format` replaces the one that the config names; `model_image_size` is the size that the model's own preprocessing
    makes of an image of (width, height) (None: what its family publishes); `model` is what the endpoint calls the model. A model
    that has not answered within `reply_timeout_s` is an outage.
    """

    def __init__(
        self,
        config: AgentConfig | None = None,
        *,
        action_format: ActionFormat | None = None,
        model_image_size: Callable[[int, int], tuple[int, int]] | None = None,
        model: str = "deskhand",
        reply_timeout_s: float = 600.0,
    ) -> None:
        self.config = config or AgentConfig()
        self.action_format = action_format or formats.get(self.config.action_format)
        self._history = window_of(self.config)
        self._model_image_size, self._model, self._reply_timeout_s = model_image_size, model, reply_timeout_s

    def view_of(self, width: int, height: int) -> ScreenView:
        """How the model sees a screen of this size."""
        seen = self._model_image_size(width, height) if self._model_image_size else None
        return replace(ScreenView.of_screen(width, height), seen=seen)

    async def solve(
        self,
        desktop: Desktop,
        instruction: str,
        client: openai.AsyncOpenAI,
        *,
        frame: Frame | None = None,
        max_steps: int = MAX_STEPS,
        after_step: AfterStep | None = None,
        keep_frame: OnFrame | None = None,
        seed: int | None = None,
    ) -> Transcript:
        """Work until the model ends the task or the budget does.

        `frame` is the screen to start from (None: it is observed); `after_step` is awaited
        after each performed step with the screen that followed; `keep_frame` gets every screen that the model is shown;
        with `seed` each reply is sampled with a seed of its own that follows from it.
        Raises `InfrastructureError` when the desktop or the model's endpoint fails.
        """
        config, name = self.config, uuid.uuid4().hex
        frame = frame or await desktop.observe()
        sha256, (url,) = await self._show(frame, f"{instruction}-0", keep_frame)
        turns, steps, mistakes, waited_s = [Turn(url, screen_text=await self._words(desktop))], [], 0, 0.0
        stopped: StopReason = "max_steps"
        answer: str | None = None
        first = 0
        for index in range(max_steps):
            before = time.monotonic()
            view = self.view_of(*frame.size)
            first = max(first, self._history.start_index(len(turns)))
            drawn = None if seed is None else call_seed(seed, index)
            reply = await self._ask(client, instruction, turns, view, first, drawn)
            while (
                reply is None
                and config.on_overflow == "drop"
                and (later := drop_older_half(first, len(turns))) is not None
            ):
                first = later
                reply = await self._ask(client, instruction, turns, view, first, drawn)
            waited_s += time.monotonic() - before
            if reply is None:
                stopped = "overflow"
                break
            text, call_id, truncated = reply
            ops, error, fault, after = await self._act(desktop, view, text, truncated, f"{name}-{index}")
            settled_ms, changed = (after.settle_ms, after.changed_bbox) if after else (0.0, None)
            step = Step(index, text, ops, error, sha256, call_id, settled_ms, changed, fault)
            steps.append(step)
            zoom_urls: list[str] = []
            if after is not None:
                frame = after
                zooms = [op for op in ops if isinstance(op, Zoom)]
                sha256, (url, *zoom_urls) = await self._show(frame, f"{instruction}-{index + 1}", keep_frame, zooms)
            if error is None and after_step is not None:
                await after_step(step, frame)
            turns[-1] = replace(turns[-1], reply=text)
            if error is None and ops and isinstance(ops[-1], TERMINAL_OPS):
                last = ops[-1]
                stopped = "done" if isinstance(last, Done) else "answer" if isinstance(last, Answer) else "fail"
                answer = last.text if isinstance(last, Answer) else None
                break
            mistakes = mistakes + 1 if error else 0
            if mistakes >= config.max_consecutive_errors:
                stopped = "truncated" if truncated else "too_many_errors"
                break
            told, words = error if config.error_feedback else None, await self._words(desktop)
            turns.append(Turn(url, error=told, zoom_urls=tuple(zoom_urls), screen_text=words))
        return Transcript(tuple(steps), stopped, sha256, waited_s, answer)

    async def _words(self, desktop: Desktop) -> str | None:
        return await describe_screen(desktop) if self.config.observation == "words" else None

    async def _show(
        self, frame: Frame, seed: str, keep_frame: OnFrame | None, zooms: Sequence[Zoom] = ()
    ) -> tuple[str, list[str]]:
        """The name of the screen that the model is shown, and the data URIs of it and of what it zoomed in on."""
        if self.config.noise_images:
            frame = await asyncio.to_thread(noise_frame, frame, seed)
        closer = [await asyncio.to_thread(crop_and_enlarge, frame, zoom) for zoom in zooms]
        shown = [await _encode(image, keep_frame) for image in (frame, *closer)]
        return shown[0][0], [url for _, url in shown]

    async def _ask(
        self,
        client: openai.AsyncOpenAI,
        instruction: str,
        turns: list[Turn],
        view: ScreenView,
        first: int,
        seed: int | None,
    ) -> tuple[str, str, bool] | None:
        """(text, call id, truncated) to the turns from `first` on, or None when they do not fit the model."""
        config = self.config
        messages: Any = build_messages(
            config.prompt_style,
            instruction,
            turns[first:],
            prompt=self.action_format.prompt(view) if config.prompt_style == "full" else "",
            earlier=self._summary(turns, first),
        )
        try:
            async with asyncio.timeout(self._reply_timeout_s):
                response = await client.chat.completions.create(
                    model=self._model,
                    messages=messages,
                    max_tokens=config.max_new_tokens,
                    temperature=config.temperature,
                    top_p=config.top_p,
                    seed=openai.omit if seed is None else seed,
                )
        except TimeoutError:
            raise InfrastructureError(
                f"the model's endpoint {client.base_url} did not answer within {self._reply_timeout_s:g} s"
            ) from None
        except openai.BadRequestError as error:
            if error.code == "context_length_exceeded":
                return None
            raise InfrastructureError(
                f"the model's endpoint {client.base_url} refused the request: {_line(error)}"
            ) from error
        except openai.OpenAIError as error:
            raise InfrastructureError(f"the model's endpoint {client.base_url} failed: {_line(error)}") from error
        if not response.choices:
            raise InfrastructureError(f"the model's endpoint {client.base_url} returned no choice")
        choice = response.choices[0]
        return _unicode(choice.message.content or ""), response.id, choice.finish_reason == "length"

    def _summary(self, turns: list[Turn], first: int) -> list[str]:
        """What the model is told of the turns before `first`."""
        config = self.config
        if config.dropped_turns == "replies" and config.prompt_style == "compact":
            return []
        replies, errors = [turn.reply or "" for turn in turns[:first]], [turn.error for turn in turns[1 : first + 1]]
        return summarize_dropped(config.dropped_turns, replies, errors, MAX_DROPPED_TURNS)

    async def _act(
        self, desktop: Desktop, view: ScreenView, text: str, truncated: bool, action_id: str
    ) -> tuple[tuple[Op, ...], str | None, ReplyError, Frame | None]:
        """(ops, why nothing was performed, of what kind that is, the screen that followed)."""
        if truncated:
            return (), f"the reply was cut at {self.config.max_new_tokens} tokens", "truncated", None
        try:
            ops = tuple(self.action_format.parse(text, view))
        except ParseError as error:
            return (), error.reason, "format", None
        doing: list[Op] = [op for op in ops if not isinstance(op, TERMINAL_OPS)]
        if not doing:
            return ops, None, "", None
        try:
            return ops, None, "", await desktop.perform(doing, action_id=action_id)
        except AgentError as error:
            return ops, str(error), "action", None


def noise_frame(frame: Frame, seed: str) -> Frame:
    """A frame of the same size whose pixels are uniform noise: a function of `seed` alone, so it tells nothing of the screen."""
    pixels = np.random.default_rng(list(seed.encode())).integers(0, 256, frame.bgrx.shape, dtype=np.uint8)
    pixels.flags.writeable = False
    return replace(frame, bgrx=pixels, content_hash=hashlib.sha256(pixels.tobytes()).hexdigest(), under_cursor=None)


async def _encode(frame: Frame, keep_frame: OnFrame | None) -> tuple[str, str]:
    """The frame's name and its data URI; hashing and encoding run off the event loop."""

    def encode() -> tuple[str, str]:
        return frame.sha256, png_data_uri(frame.png())

    sha256, url = await asyncio.to_thread(encode)
    if keep_frame is not None:
        await keep_frame(frame)
    return sha256, url


def _unicode(text: str) -> str:
    """Half of a surrogate pair, which JSON lets through and nothing else does, is U+FFFD, as bytes are that are no text."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
