"""What `deskhand record` kept, as graphs of which a model can learn. Invariant: a reply that was understood is learned once or left
out and counted by the reason; nothing of the conversation around it is learned.

The replies are those of any model behind any endpoint. They are tokenised anew for the model that learns, in the conversations as
its own recorder would render them, tools included. Nobody judged the sessions: one that was given a reward is taken when that is 1
or more, one without a reward is taken as it is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deskhand.errors import ConfigError, RecordError
from deskhand.recorder.apis.validation import tool_definition
from deskhand.recorder.conversations import Conversation, conversations
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.images import ImageCache, decode_rgb
from deskhand.recorder.recording_proxy import ExchangeLog, StoredImages
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.reply_index import ReplyIndex
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sft_export import read_session
from deskhand.store.frames import Frames
from deskhand.types import Completion

MIN_REWARD = 1.0
"""Least reward of a session that has one."""
_MAX_PIXELS = 4096 * 4096


@dataclass
class RecordedDataset:
    """Conversations by name, and what is not among them: replies by reason, sessions by their reward."""

    graphs: dict[str, CallGraph] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    num_low_reward: int = 0
    """Sessions whose reward was too low."""


def is_recording(folder: Path) -> bool:
    """Whether a folder is what `deskhand record` writes."""
    return any((folder / "sessions").glob("*/exchanges.jsonl"))


def read(folder: Path, renderer: ChatRenderer, images: ImageCache, frames: Frames) -> RecordedDataset:
    """The conversations under a folder of `deskhand record`. Their pictures are copied to `frames`, from which `images` must take
    them. Raises `ConfigError` when nothing can be learned of them."""
    files, found = SessionStore(folder), RecordedDataset()
    log, kept = ExchangeLog(files), StoredImages(files)
    try:
        for session_id in log.sessions():
            session = read_session(log, kept, session_id)
            found.sessions += 1
            if session.total_reward is not None and session.total_reward < MIN_REWARD:
                found.num_low_reward += 1
                continue
            found.left_out.update(session.skipped)
            for number, conversation in enumerate(conversations(session.exchanges)):
                try:
                    _keep_pictures(conversation, files, frames)
                except (KeyError, InvalidRequestError):
                    found.left_out["a picture is missing or damaged"] += len(conversation.targets)
                    continue
                graph = graph_of(conversation, renderer, images, found.left_out)
                if graph.calls:
                    found.graphs[f"{session_id}.{number}"] = graph
    finally:
        files.close()
    if not found.graphs:
        why = ", ".join(f"{count} {reason}" for reason, count in found.left_out.most_common(3))
        raise ConfigError(
            f"{folder} holds nothing to learn from: {found.sessions} sessions, {found.num_low_reward} with a reward below {MIN_REWARD:g}"
            f"{f'; left out: {why}' if why else ''}"
        )
    return found


def graph_of(
    conversation: Conversation, renderer: ChatRenderer, images: ImageCache, left_out: Counter[str]
) -> CallGraph:
    """The replies of a conversation as calls: what was shown before each, and its text as the learning model would write it.
    Log-probs are 0 and versions -1: nobody sampled these ids."""
    graph, recall = CallGraph(), ReplyIndex()
    try:
        messages = renderer.tools.with_tools(conversation.messages, _offered(json.loads(conversation.tools)))
    except InvalidRequestError as error:
        left_out[error.message] += len(conversation.targets)
        return graph
    shift = len(messages) - len(conversation.messages)
    for number, place in enumerate(conversation.targets):
        before, reply = messages[: place + shift], messages[place + shift]
        try:
            text = renderer.reply_text(reply)
            prompt, token_ids = renderer.render(before, images, recall), (*renderer.encode_text(text), renderer.end_id)
        except InvalidRequestError as error:
            left_out[error.message] += 1
            continue
        except RecordError as error:
            left_out[error.cause] += 1
            continue
        count = len(token_ids)
        done = Completion(token_ids, (0.0,) * count, (-1,) * count, "stop", prompt.token_ids)
        parent = graph.parent_of(prompt.token_ids, prompt.spans, 1.0)
        call = Call(str(number), parent, prompt.token_ids, prompt.spans, done, 1.0, text)
        graph.add(call)
        recall.record(before, call, [reply])
    return graph


def _offered(tools: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """The tools of a request as OpenAI's chat API defines them, whichever API it was of. Raises `InvalidRequestError`."""
    found = []
    for index, tool in enumerate(tools):
        own = tool.get("function", tool) if isinstance(tool, dict) else {}
        schema = own.get("parameters", own.get("input_schema"))
        found.append(tool_definition(own.get("name"), own.get("description"), schema, f"tools[{index}]"))
    return tuple(found)


def _keep_pictures(conversation: Conversation, files: SessionStore, frames: Frames) -> None:
    for name in {sha256 for one in conversation.messages for sha256 in one.image_hashes}:
        frames.put(name, np.asarray(decode_rgb(files.image(name), max_pixels=_MAX_PIXELS)))
