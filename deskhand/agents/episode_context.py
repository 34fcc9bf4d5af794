"""What an agent works with during one episode: the task, the model, the desktop, and the record of its steps.

`EpisodeContext` performs each step at most once, records it, keeps the frames, checks milestones and enforces the
limits, so that an agent cannot forget to. `Agent` is the protocol of everything that `agent.class` can name.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import openai

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.smart_resize import ModelImageSize
from deskhand.actions.ops import TERMINAL_OPS, Answer, Done, Op
from deskhand.agents.prompts import png_data_uri
from deskhand.agents.seeding import call_seed
from deskhand.config.schema import AgentConfig
from deskhand.desktop.base import Desktop, Frame
from deskhand.errors import AgentError, DeskhandError, ParseError

MAX_STEPS = 10
StopReason = Literal["done", "fail", "answer", "terminated", "max_steps", "too_many_errors", "overflow", "truncated"]
ReplyError = Literal["", "format", "action", "truncated"]
"""What was wrong with a reply: not understood, not possible on this screen, or cut at the token limit."""
ImageSize = Callable[..., tuple[int, int]]
"""(width, height) to which the model's own preprocessing resizes an image of (width, height); a third argument lowers
its maximum area, as in `ModelImageSize`."""


@dataclass(frozen=True)
class Step:
    """One model call and its result."""

    index: int
    text: str
    ops: tuple[Op, ...]
    """The parsed reply; empty if it could not be parsed."""
    error: str | None
    """Why nothing was performed; None if the ops were performed."""
    frame_sha256: str
    """The screen that the model saw."""
    call_id: str
    settled_ms: float
    """Settle time of the screen that followed; 0 if nothing was performed."""
    changed_bbox: tuple[int, int, int, int] | None
    reply_error: ReplyError = ""
    """The kind of `error`; empty if the ops were performed."""


@dataclass(frozen=True)
class Transcript:
    """The steps of one episode and why they ended. "terminated": the task ended it; "truncated": the last allowed error
    was a reply cut at `max_tokens`; "overflow": the conversation no longer fit the model."""

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
        """Whole replies that the action format does not understand; truncated ones do not count."""
        return sum(step.reply_error == "format" for step in self.steps)


AfterStep = Callable[[Step, Frame], Awaitable[None]]
OnFrame = Callable[[Frame], Awaitable[None]]
ImageUrl = Callable[[Frame], Awaitable[str]]
"""Returns the URL of an image for the messages to one endpoint."""


class EpisodeOver(DeskhandError):
    """An agent acted after the end of its episode; the episode is judged on its end state."""


@dataclass(frozen=True)
class EpisodeSettings:
    """What all episodes of an agent have in common."""

    config: AgentConfig = field(default_factory=AgentConfig)
    model: str = "deskhand"
    """Name of the model at the endpoint."""
    image_size: ImageSize | None = None
    """None: what the model's family publishes."""
    image_url: ImageUrl | None = None
    """None: data URIs, which every endpoint reads."""

    def __post_init__(self) -> None:
        self.shown_size(1280, 720)  # raises for a `max_pixels` that this model cannot have

    def shown_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size in which a screen is shown: its own, or with `max_pixels` the model's for that area.

        An image of the latter size is one that the model's own preprocessing leaves as it is. Raises `ConfigError`.
        """
        most, resize = self.config.max_pixels, self.image_size or ModelImageSize()
        if most is None or (reduced := resize(width, height, most)) == resize(width, height):
            return width, height
        return reduced


def view_of(settings: EpisodeSettings, width: int, height: int) -> ScreenView:
    """How a model sees a screen of a size in pixels."""
    shown = settings.shown_size(width, height)
    return ScreenView(width, height, *shown, settings.image_size(*shown) if settings.image_size else None)


class EpisodeContext:
    """One episode as an agent sees it."""

    def __init__(
        self,
        desktop: Desktop,
        instruction: str,
        client: openai.AsyncOpenAI,
        settings: EpisodeSettings | None = None,
        *,
        frame: Frame | None = None,
        max_steps: int = MAX_STEPS,
        seed: int | None = None,
        after_step: AfterStep | None = None,
        keep_frame: OnFrame | None = None,
    ) -> None:
        """`frame` is the start screen (None: it is observed). `after_step` is awaited after each performed step with
        the screen that followed; `keep_frame` gets every screen that the model is shown."""
        self.settings = settings or EpisodeSettings()
        self.desktop, self.instruction, self.client, self.model = desktop, instruction, client, self.settings.model
        self.max_steps, self.seed = max_steps, seed
        self.present: Callable[[Frame, int], Frame] | None = None
        """Replaces a screen before it is shown and recorded; gets the number of steps taken."""
        self.model_seconds: float | None = None
        """Time spent waiting for the model; None: all time between the calls of this object."""
        self.steps: list[Step] = []
        self._name, self._after_step, self._keep_frame = uuid.uuid4().hex, after_step, keep_frame
        self._screen, self._shown, self._sha256 = frame, None, ""
        self._full_size_frame: Frame | None = None
        self._stop: StopReason | None = None
        self._answer: str | None = None
        self._errors_in_a_row = 0
        self._last_error: AgentError | None = None
        self._agent_s, self._left_at = 0.0, time.monotonic()

    @property
    def done(self) -> bool:
        """Whether a terminal op, the task, the step limit or too many errors in a row ended the episode."""
        return self._stop is not None or len(self.steps) >= self.max_steps

    @property
    def frame(self) -> Frame:
        """The screen that the model was shown last, scaled down to `max_pixels` of the config."""
        if self._shown is None:
            raise RuntimeError("await observe() first")
        return self._shown

    @property
    def last_screen(self) -> Frame | None:
        """The same screen in its own size; None before the first `observe`."""
        return self._full_size_frame

    @property
    def full_size_frame(self) -> Frame:
        """The same screen in its own size."""
        if self._full_size_frame is None:
            raise RuntimeError("await observe() first")
        return self._full_size_frame

    @property
    def view(self) -> ScreenView:
        """How this model sees the screen: what an action format needs to parse coordinates."""
        return view_of(self.settings, *self.full_size_frame.size)

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments for `client.chat.completions.create`: temperature, top_p, max_tokens, and the seed of the next
        call."""
        return sampling_arguments(self.settings.config, self)

    @property
    def transcript(self) -> Transcript:
        """The steps so far. An agent that returned before the end counts as done."""
        stopped = self._stop or ("max_steps" if self.done else "done")
        seconds = self._agent_s if self.model_seconds is None else self.model_seconds
        return Transcript(tuple(self.steps), stopped, self._sha256, seconds, self._answer)

    async def complete(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Ask the model with the config's sampling arguments, and return the text of its reply."""
        sent: Any = list(messages)
        reply = await self.client.chat.completions.create(model=self.model, messages=sent, **self.sampling)
        return reply.choices[0].message.content or "" if reply.choices else ""

    async def observe(self) -> Frame:
        """The screen now; the first call returns the start screen."""
        with self._inside():
            if self._screen is None or self._shown is not None:
                self._screen = await self.desktop.observe()
            return await self._show(self._screen)

    async def act(self, ops: Sequence[Op], *, reply: str = "", call_id: str = "") -> Frame:
        """Perform one step and return the screen that followed. `reply` is the model's text.

        Raises `AgentError` if the ops cannot be performed on this screen; the step is recorded all the same.
        """
        if self.done:
            raise EpisodeOver(f"the episode ended ({self.transcript.stop_reason}); check episode.done")
        with self._inside():
            performed: list[Op] = [op for op in ops if not isinstance(op, TERMINAL_OPS)]
            try:
                action_id = f"{self._name}-{len(self.steps)}"
                after = await self.desktop.perform(performed, action_id=action_id) if performed else None
            except AgentError as error:
                self._fail(reply, tuple(ops), str(error), "action", call_id, error)
                raise
            settled_ms, changed = (after.settle_ms, after.changed_bbox) if after else (0.0, None)
            step = Step(len(self.steps), reply, tuple(ops), None, self._sha256, call_id, settled_ms, changed)
            self.steps.append(step)
            self._errors_in_a_row = 0
            if after is not None:
                self._screen = after
                await self._show(after)
            if self._after_step is not None and self._screen is not None:
                await self._after_step(step, self._screen)
            if ops and isinstance(last := ops[-1], TERMINAL_OPS):
                self._stop = "done" if isinstance(last, Done) else "answer" if isinstance(last, Answer) else "fail"
                self._answer = last.text if isinstance(last, Answer) else None
        return self.frame

    def reject(self, reply: str, error: AgentError, *, call_id: str = "", truncated: bool = False) -> None:
        """Record a reply of which nothing was performed. For an error that `act` raised, only the text is added."""
        if error is self._last_error:
            self.steps[-1] = replace(self.steps[-1], text=reply or self.steps[-1].text)
            return
        why = error.reason if isinstance(error, ParseError) else str(error)
        kind = "truncated" if truncated else "format" if isinstance(error, ParseError) else "action"
        self._fail(reply, (), why, kind, call_id, error)

    def end(self, reason: StopReason) -> None:
        """End the episode without a further step."""
        self._stop = self._stop or reason

    async def image_url(self, frame: Frame) -> str:
        """Return the URL of an image for the messages of a call; only the endpoint of this episode reads it."""
        if self.settings.image_url is not None:
            return await self.settings.image_url(frame)
        return await asyncio.to_thread(lambda: png_data_uri(frame.png()))

    async def keep(self, frame: Frame) -> None:
        """Keep an image that the model is shown besides the screen."""
        await asyncio.to_thread(lambda: frame.sha256)
        if self._keep_frame is not None:
            await self._keep_frame(frame)

    async def _show(self, frame: Frame) -> Frame:
        if self.present is not None:
            frame = await asyncio.to_thread(self.present, frame, len(self.steps))
        self._full_size_frame, size = frame, self.settings.shown_size(*frame.size)
        if size != frame.size:
            frame = await asyncio.to_thread(frame.resized, size)
        await self.keep(frame)
        self._shown, self._sha256 = frame, frame.sha256
        return frame

    def _fail(
        self, reply: str, ops: tuple[Op, ...], why: str, kind: ReplyError, call_id: str, error: AgentError
    ) -> None:
        self.steps.append(Step(len(self.steps), reply, ops, why, self._sha256, call_id, 0.0, None, kind))
        self._last_error = error
        self._errors_in_a_row += 1
        if self._errors_in_a_row >= self.settings.config.max_consecutive_errors:
            self._stop = "truncated" if kind == "truncated" else "too_many_errors"

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Everything outside of this is the agent's own time."""
        self._agent_s += time.monotonic() - self._left_at
        try:
            yield
        finally:
            self._left_at = time.monotonic()


def sampling_arguments(config: AgentConfig, episode: EpisodeContext) -> dict[str, Any]:
    """Sampling arguments of the next chat completion."""
    return {
        "max_tokens": config.max_new_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "seed": openai.omit if episode.seed is None else call_seed(episode.seed, len(episode.steps)),
    }


class Agent(Protocol):
    """What plays an episode. One object plays many episodes concurrently, so it keeps no state of an episode.

    Examples:
        >>> class Noop:
        ...     async def run(self, episode):
        ...         await episode.observe()
        ...         await episode.act([Done()])
    """

    async def run(self, episode: EpisodeContext) -> None:
        """Play until `episode.done`. Let `InfrastructureError` and the client's errors pass: they are no fault of the
        agent. An `AgentError` that escapes ends the episode, which is scored on its end state."""
        ...
