"""Trajectories of other projects as demonstrations: `import_trajectories`. Used by `deskhand import`.

The folder written is a recording as of `deskhand record`: a conversation per trajectory, with the prompts, screenshots
and action format of the config's agent. `problems.txt` has a line for everything that was not imported.

Invariant: a reply is what the agent's format writes for the action of the source, after the screenshot that preceded
    that action. A step whose action or screenshot is missing ends a conversation; the next starts another.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from deskhand.actions.formats.base import ScreenView
from deskhand.actions.formats.smart_resize import model_image_size
from deskhand.actions.formats.thoughts import with_thought
from deskhand.actions.serialization import op_to_json
from deskhand.agents.desktop_agent import DesktopAgent
from deskhand.agents.prompts import Turn
from deskhand.config.schema import AgentConfig
from deskhand.errors import AgentError, ConfigError, ParseError
from deskhand.integrations.recordings.agentnet import read_agentnet
from deskhand.integrations.recordings.export import new_folder
from deskhand.integrations.recordings.osworld import read_osworld
from deskhand.integrations.recordings.scalecua import read_scalecua
from deskhand.integrations.recordings.trajectories import Problems, Step, Trajectory
from deskhand.models.load import load_processors
from deskhand.recipes.recorded_data import MIN_REWARD
from deskhand.recorder.image_decoding import decode_rgb, pixels_sha256
from deskhand.recorder.images import IMAGE
from deskhand.recorder.recording_proxy import ExchangeLog
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.session_store import SessionStore

Source = Literal["agentnet", "scalecua", "osworld"]
_MAX_PIXELS = 4096 * 4096
_NAME = re.compile(r'"action_type"\s*:\s*"(\w+)"|([A-Za-z_][\w.]*)(?=\s*\()')
"""Name of an action in JSON or code."""


@dataclass
class ImportCounts:
    """What was imported and what was not. `left_out` counts actions by name; `problems` has all with their place."""

    trajectories: int = 0
    conversations: int = 0
    replies: int = 0
    """Replies to train on, in trajectories without a score below 1."""
    low_reward: int = 0
    """Trajectories with a score below 1."""
    without_thought: int = 0
    """Replies whose thought the agent's format cannot hold."""
    left_out: Counter[str] = field(default_factory=Counter)
    problems: Problems = field(default_factory=Problems)


@dataclass(frozen=True)
class _Reply:
    image_url: str
    view: ScreenView
    text: str
    is_target: bool


def import_trajectories(
    agent: AgentConfig,
    model: str,
    source: Path,
    kind: Source,
    folder: Path,
    *,
    images: Path | None = None,
    tasks: Path | None = None,
    limit: int | None = None,
    thoughts: bool = True,
) -> ImportCounts:
    """Write the trajectories as a recording; a failed import leaves nothing.

    Args:
        agent: Agent whose prompts and action format are written.
        model: Its model, whose image size is written.
        images: Folder of the screenshots; None: next to the file, or what a `meta.json` says.
        tasks: OSWorld's tasks, for its instructions.
        limit: Trajectories to read; None: all.
        thoughts: Whether replies say why.

    Raises:
        ConfigError: The source does not exist, nothing in it can be imported, or the agent is not Deskhand's own.
    """
    if agent.class_ != "desktop" or agent.observation != "screenshot":
        raise ConfigError("agent.class and agent.observation: imports need Deskhand's own agent with screenshots")
    if not source.exists():
        raise ConfigError(f"{source}: does not exist; give the file or folder of the data set")
    size = model_image_size(load_processors(model)[1])
    counts, player = ImportCounts(), DesktopAgent(agent, model_image_size=size)
    with new_folder(folder) as partial:
        files = SessionStore(_made(partial), durable=False)
        writer = _Writer(player, files, counts, thoughts)
        for trajectory in islice(_trajectories(source, kind, images, tasks, counts.problems), limit):
            writer.write(trajectory)
        if not counts.replies:
            raise ConfigError(f"{source}: nothing to import; {_why(counts)}")
        (partial / "problems.txt").write_text("".join(f"{line}\n" for line in counts.problems.lines), encoding="utf-8")
    return counts


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _why(counts: ImportCounts) -> str:
    if counts.problems.lines:
        return f"first of {len(counts.problems.lines)} problems: {counts.problems.lines[0]}"
    low = f"{counts.low_reward} trajectories have a score below {MIN_REWARD:g}"
    return low if counts.low_reward else "it has no trajectory"


def _trajectories(
    source: Path, kind: Source, images: Path | None, tasks: Path | None, problems: Problems
) -> Iterator[Trajectory]:
    if kind == "osworld":
        if tasks is None:
            raise ConfigError("--tasks: required for osworld, whose results have no instructions; give its checkout")
        return read_osworld(source, tasks, problems)
    return (read_agentnet if kind == "agentnet" else read_scalecua)(source, images, problems)


class _Writer:
    """Writes trajectories as sessions of a recording."""

    def __init__(self, agent: DesktopAgent, files: SessionStore, counts: ImportCounts, thoughts: bool) -> None:
        self._agent, self._files, self._counts, self._thoughts = agent, files, counts, thoughts
        self._log = ExchangeLog(files)

    def write(self, trajectory: Trajectory) -> None:
        """Write the conversations of a trajectory that have a reply to train on."""
        parts: list[list[_Reply]] = [[]]
        for step in trajectory.steps:
            reply = None if step is None else self._reply(step)
            if reply is None:
                parts.append([])
            else:
                parts[-1].append(reply)
        parts = [part for part in parts if any(reply.is_target for reply in part)]
        for number, part in enumerate(parts):
            self._write_conversation(trajectory, f".{number}" if number else "", part)
        counts = self._counts
        counts.trajectories += bool(parts)
        counts.conversations += len(parts)
        if parts and trajectory.reward is not None and trajectory.reward < MIN_REWARD:
            counts.low_reward += 1
        else:
            counts.replies += sum(reply.is_target for part in parts for reply in part)

    def _write_conversation(self, trajectory: Trajectory, suffix: str, replies: list[_Reply]) -> None:
        session, turns, first = trajectory.name + suffix, list[Turn](), 0
        for number, reply in enumerate(replies):
            turns.append(Turn(reply.image_url))
            first = max(first, self._agent.first_turn(len(turns)))
            messages = self._agent.messages(trajectory.instruction, turns, reply.view, first)
            turns[-1] = replace(turns[-1], reply=reply.text)
            if reply.is_target:
                said = {"message": {"role": "assistant", "content": reply.text}, "index": 0, "finish_reason": "stop"}
                exchange = {"id": f"{session}.{number}", "api": "chat", "request": {"messages": messages}}
                self._log.append(session, {"exchange": {**exchange, "reply": {"choices": [said]}}})
        if trajectory.reward is not None:
            self._log.append(session, {"reward": {"reward": trajectory.reward, "call_id": None}})

    def _reply(self, step: Step) -> _Reply | None:
        problems = self._counts.problems
        try:
            image = Image.fromarray(decode_rgb(step.image.read_bytes(), max_pixels=_MAX_PIXELS))
        except OSError as error:
            problems.add(
                step.place, f"{step.image}: {error.strerror}; unpack the screenshots there or correct --images"
            )
            self._counts.left_out["without a screenshot"] += 1
            return None
        except InvalidRequestError as error:
            problems.add(step.place, f"{step.image}: {error.message}; download it again")
            self._counts.left_out["with an unreadable screenshot"] += 1
            return None
        try:
            view, text = self._text(step, *image.size)
        except AgentError as error:
            name = _action_at(step.code, error)
            problems.add(step.place, f"{name}: {error.reason if isinstance(error, ParseError) else error}; left out")
            self._counts.left_out[name] += 1
            return None
        return _Reply(self._stored(image, step.image, view), view, text, step.is_target)

    def _text(self, step: Step, width: int, height: int) -> tuple[ScreenView, str]:
        """Return the view and the reply. Raises `AgentError`."""
        target, view, screen = self._agent.action_format, self._agent.view_of(width, height), (width, height)
        ops = step.action_format.parse(step.code, ScreenView.of_screen(width, height))
        wanted = [op_to_json(op, *screen) for op in ops]
        if step.reply and self._thoughts and _is_same(target, step.reply, view, wanted):
            return view, step.reply
        action = target.emit(ops, view)
        if not self._thoughts or not (step.thought or step.summary):
            return view, action
        reply = with_thought(target, view, action, step.thought, step.summary)
        self._counts.without_thought += reply is None
        return view, reply or action

    def _stored(self, image: Image.Image, path: Path, view: ScreenView) -> str:
        shown = (view.image_width, view.image_height)
        if shown == image.size:
            encoded = path.read_bytes()
        else:
            image = image.resize(shown, Image.Resampling.BICUBIC)
            buffer = io.BytesIO()
            image.save(buffer, format="PNG", compress_level=1)
            encoded = buffer.getvalue()
        name = pixels_sha256(np.asarray(image))
        self._files.save_image(name, encoded)
        return IMAGE + name


def _is_same(action_format: Any, reply: str, view: ScreenView, wanted: list[dict[str, Any]]) -> bool:
    try:
        ops = action_format.parse(reply, view)
        return [op_to_json(op, view.screen_width, view.screen_height) for op in ops] == wanted
    except AgentError:
        return False


def _action_at(code: str, error: AgentError) -> str:
    """Return the name of the action at fault, such as `pyautogui.screenshot`, for counting."""
    start = error.span[0] if isinstance(error, ParseError) else 0
    found = _NAME.search(code, start) or _NAME.search(code)
    return found[1] or found[2] if found else "without an action"
