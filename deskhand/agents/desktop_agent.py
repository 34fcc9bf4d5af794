"""Deskhand's agent: observe, ask the model, act.

It turns screenshots and replies into a conversation and parses replies with an action format. Replies that cannot be
parsed or performed are reported to the model and counted. `EpisodeContext` does the rest; runners and `solve` start it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openai

from deskhand import pausable_timeout
from deskhand.actions import formats
from deskhand.actions.formats.base import ActionFormat, ScreenView
from deskhand.actions.ops import Op, Zoom
from deskhand.agents.episode_context import (
    EpisodeContext,
    EpisodeSettings,
    ImageSize,
    Transcript,
    sampling_arguments,
    view_of,
)
from deskhand.agents.history import build_history, drop_older_half, summarize_dropped
from deskhand.agents.prompts import Turn, build_messages
from deskhand.agents.text_observation import describe_screen
from deskhand.agents.zoom import crop_and_enlarge
from deskhand.config.schema import AgentConfig
from deskhand.desktop.base import Desktop, Frame
from deskhand.desktop.remote.http_connection import request_failure
from deskhand.errors import AgentError, InfrastructureError

MAX_DROPPED_TURNS = 30
"""Maximum number of dropped turns in the summary."""


class DesktopAgent:
    """Plays episodes with one model; the first user of `EpisodeContext`.

    `action_format` replaces the config's; further options are fields of `AgentConfig`. A model that does not answer
    within `reply_timeout_s` is an outage.

    Examples:
        >>> agent = DesktopAgent(action_format="qwen3_vl", prompt_style="full", max_new_tokens=256)
    """

    def __init__(
        self,
        config: AgentConfig | None = None,
        *,
        action_format: ActionFormat | str | None = None,
        model_image_size: ImageSize | None = None,
        model: str = "deskhand",
        reply_timeout_s: float = 600.0,
        **options: Any,
    ) -> None:
        if isinstance(action_format, str):
            options["action_format"], action_format = action_format, None
        self.config = config or AgentConfig()
        if options:
            self.config = AgentConfig(**{**(config.model_dump() if config else {}), **options})
        self.action_format = action_format or formats.get(self.config.action_format)
        self.settings = EpisodeSettings(self.config, model, model_image_size)
        self._history = build_history(self.config)
        self._reply_timeout_s = reply_timeout_s

    def view_of(self, width: int, height: int) -> ScreenView:
        """How the model sees a screen of this size."""
        return view_of(self.settings, width, height)

    def first_turn(self, turns: int) -> int:
        """Return the index of the first of `turns` turns that the model is shown."""
        return self._history.start_index(turns)

    def messages(self, instruction: str, turns: Sequence[Turn], view: ScreenView, first: int) -> list[dict[str, Any]]:
        """Return the messages that ask for the next reply, with the turns from `first` on."""
        config = self.config
        return build_messages(
            config.prompt_style,
            instruction,
            turns[first:],
            prompt=self.action_format.prompt(view) if config.prompt_style == "full" else "",
            earlier=self._summary(turns, first),
        )

    async def solve(self, desktop: Desktop, instruction: str, client: openai.AsyncOpenAI, **options: Any) -> Transcript:
        """Play one episode without a runner. The options are those of `EpisodeContext`.

        Raises `InfrastructureError` if the desktop or the model's endpoint fails.
        """
        episode = EpisodeContext(desktop, instruction, client, self.settings, **options)
        await self.run(episode)
        return episode.transcript

    async def run(self, episode: EpisodeContext) -> None:
        """Play until the model ends the task or a limit is reached."""
        config, desktop = self.config, episode.desktop
        if config.noise_images:
            episode.present = lambda frame, step: noise_frame(frame, f"{episode.instruction}-{step}")
        frame = await episode.observe()
        url = await episode.image_url(frame)
        turns = [Turn(url, screen_text=await self._words(desktop))]
        first, episode.model_seconds = 0, 0.0
        while not episode.done:
            before = time.monotonic()
            view = episode.view
            first = max(first, self.first_turn(len(turns)))
            reply = await self._ask(episode, turns, view, first)
            while reply is None and config.on_overflow == "truncate":
                later = drop_older_half(first, len(turns))
                if later is None:
                    break
                first = later
                reply = await self._ask(episode, turns, view, first)
            episode.model_seconds += time.monotonic() - before
            if reply is None:
                episode.end("overflow")
                break
            text, call_id, truncated = reply
            error, ops = await self._act(episode, view, text, call_id, truncated)
            zoom_urls: list[str] = []
            if episode.frame is not frame:
                frame = episode.frame
                url = await episode.image_url(frame)
                zoom_urls = [await self._zoom(episode, op) for op in ops if isinstance(op, Zoom)]
            turns[-1] = replace(turns[-1], reply=text)
            if not episode.done:
                told, words = error if config.error_feedback else None, await self._words(desktop)
                turns.append(Turn(url, error=told, zoom_urls=tuple(zoom_urls), screen_text=words))

    async def _act(
        self, episode: EpisodeContext, view: ScreenView, text: str, call_id: str, truncated: bool
    ) -> tuple[str | None, tuple[Op, ...]]:
        """(why nothing was performed, ops)."""
        ops: tuple[Op, ...] = ()
        try:
            if truncated:
                raise AgentError(f"the reply was cut at {self.config.max_new_tokens} tokens")
            ops = tuple(self.action_format.parse(text, view))
            await episode.act(ops, reply=text, call_id=call_id)
        except AgentError as error:
            episode.reject(text, error, call_id=call_id, truncated=truncated)
            return episode.steps[-1].error, ops
        return None, ops

    async def _words(self, desktop: Desktop) -> str | None:
        return await describe_screen(desktop) if self.config.observation == "a11y_tree" else None

    async def _zoom(self, episode: EpisodeContext, zoom: Zoom) -> str:
        closer = await asyncio.to_thread(crop_and_enlarge, episode.full_size_frame, zoom, episode.frame.size)
        await episode.keep(closer)
        return await episode.image_url(closer)

    async def _ask(
        self, episode: EpisodeContext, turns: list[Turn], view: ScreenView, first: int
    ) -> tuple[str, str, bool] | None:
        """(text, call id, truncated) to the turns from `first` on, or None when they do not fit the model."""
        config, client = self.config, episode.client
        messages = self.messages(episode.instruction, turns, view, first)
        sampling, endpoint = sampling_arguments(config, episode), f"the model's endpoint {client.base_url}"
        try:
            async with pausable_timeout.pausable_timeout(self._reply_timeout_s):
                # In the body as they are: the client converts `messages` by its type hints, which takes longer than
                # the rest of the call, and changes nothing in plain JSON.
                response = await client.chat.completions.create(
                    model=episode.model, messages=[], extra_body={"messages": messages}, **sampling
                )
        except TimeoutError:
            raise InfrastructureError(f"{endpoint} did not answer within {self._reply_timeout_s:g} s") from None
        except openai.BadRequestError as error:
            if error.code == "context_length_exceeded":
                return None
            raise InfrastructureError(f"{endpoint} refused the request: {request_failure(error)}") from error
        except openai.OpenAIError as error:
            raise InfrastructureError(f"{endpoint} failed: {request_failure(error)}") from error
        if not response.choices:
            raise InfrastructureError(f"{endpoint} returned no choice")
        choice = response.choices[0]
        return _unicode(choice.message.content or ""), response.id, choice.finish_reason == "length"

    def _summary(self, turns: Sequence[Turn], first: int) -> list[str]:
        config = self.config
        if config.dropped_turns == "replies" and config.prompt_style == "compact":
            return []
        replies, errors = [turn.reply or "" for turn in turns[:first]], [turn.error for turn in turns[1 : first + 1]]
        return summarize_dropped(config.dropped_turns, replies, errors, MAX_DROPPED_TURNS)


def noise_frame(frame: Frame, seed: str) -> Frame:
    """Return a frame of the same size with uniform noise that depends on `seed` alone."""
    pixels = np.random.default_rng(list(seed.encode())).integers(0, 256, frame.bgrx.shape, dtype=np.uint8)
    pixels.flags.writeable = False
    return replace(frame, bgrx=pixels, content_hash=hashlib.sha256(pixels.tobytes()).hexdigest(), under_cursor=None)


def _unicode(text: str) -> str:
    """Replace lone surrogates, which JSON allows, by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
