"""Recordings of `deskhand record` as call graphs for supervised training.

Used by `recipes.sft`; start with `read`. Replies of any model are tokenized for the model to train, in conversations as
its own recorder renders them, including tools. Sessions with a reward below 1 are skipped; sessions without a reward
are used.

Invariant: each reply is trained once or counted by the reason for skipping it; no other part of a conversation is
    trained.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError, RecordError
from deskhand.recorder.apis.validation import tool_definition
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.image_decoding import decode_rgb
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recording_proxy import ExchangeLog, StoredImages
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.reply_index import ReplyIndex
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.session_store import SessionStore
from deskhand.recorder.sft_export import Conversation, conversations, read_session
from deskhand.store.frames import Frames
from deskhand.types import Completion

MIN_REWARD = 1.0
"""Minimum reward of a session that has one."""
_MAX_PIXELS = 4096 * 4096


@dataclass
class RecordedDataset:
    """Conversations by name, and counts of skipped replies and sessions."""

    graphs: dict[str, CallGraph] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    """Skipped replies by reason."""
    sessions: int = 0
    num_low_reward: int = 0
    """Sessions with a reward below `MIN_REWARD`."""


def is_recording(folder: Path) -> bool:
    """Return whether a folder was written by `deskhand record`."""
    return any((folder / "sessions").glob("*/exchanges.jsonl"))


def read(folder: Path, renderer: ChatRenderer, images: ImageCache, frames: Frames) -> RecordedDataset:
    """Read the conversations of a recording and copy their images to `frames`, the source of `images`.

    Raises `ConfigError` if no reply can be trained.
    """
    files, found = SessionStore(folder), RecordedDataset()
    log, kept = ExchangeLog(files), StoredImages(files)
    try:
        for session_id in log.sessions():
            session = read_session(log, kept, session_id)
            found.sessions += 1
            if session.total_reward is not None and session.total_reward < MIN_REWARD:
                found.num_low_reward += 1
                continue
            found.skipped.update(session.skipped)
            for number, conversation in enumerate(conversations(session.exchanges)):
                try:
                    _copy_images(conversation, files, frames)
                except (KeyError, InvalidRequestError):
                    found.skipped["missing or damaged image"] += len(conversation.targets)
                    continue
                graph = graph_of(conversation, renderer, images, found.skipped)
                if graph.calls:
                    found.graphs[f"{session_id}.{number}"] = graph
    finally:
        files.close()
    if not found.graphs:
        why = ", ".join(f"{count} {reason}" for reason, count in found.skipped.most_common(3))
        raise ConfigError(
            f"{folder}: no usable replies in {found.sessions} sessions ({found.num_low_reward} with a reward below "
            f"{MIN_REWARD:g}{f'; skipped: {why}' if why else ''}); record more sessions"
        )
    return found


def graph_of(
    conversation: Conversation, renderer: ChatRenderer, images: ImageCache, skipped: Counter[str]
) -> CallGraph:
    """Return the replies of a conversation as calls; those that cannot be rendered are counted in `skipped`.

    Log-probs are 0 and versions -1, since the token ids were not sampled.
    """
    graph, replies = CallGraph(), ReplyIndex()
    try:
        messages = renderer.tools.with_tools(conversation.messages, _chat_tools(json.loads(conversation.tools)))
    except InvalidRequestError as error:
        skipped[error.message] += len(conversation.targets)
        return graph
    shift = len(messages) - len(conversation.messages)
    for number, index in enumerate(conversation.targets):
        before, reply = messages[: index + shift], messages[index + shift]
        try:
            text = renderer.reply_text(reply)
            prompt, token_ids = renderer.render(before, images, replies), (*renderer.encode_text(text), renderer.end_id)
        except InvalidRequestError as error:
            skipped[error.message] += 1
            continue
        except RecordError as error:
            skipped[error.cause] += 1
            continue
        count = len(token_ids)
        done = Completion(token_ids, (0.0,) * count, (-1,) * count, "stop", prompt.token_ids)
        parent = graph.parent_of(prompt.token_ids, prompt.spans, 1.0)
        call = Call(str(number), parent, prompt.token_ids, prompt.spans, done, 1.0, text)
        graph.add(call)
        replies.record(before, call, [reply])
    return graph


def _chat_tools(tools: list[Any]) -> tuple[Mapping[str, Any], ...]:
    """Convert the tools of any API to OpenAI's chat API. Raises `InvalidRequestError`."""
    found = []
    for index, tool in enumerate(tools):
        own = tool.get("function", tool) if isinstance(tool, dict) else {}
        schema = own.get("parameters", own.get("input_schema"))
        found.append(tool_definition(own.get("name"), own.get("description"), schema, f"tools[{index}]"))
    return tuple(found)


def _copy_images(conversation: Conversation, files: SessionStore, frames: Frames) -> None:
    for name in {sha256 for one in conversation.messages for sha256 in one.image_hashes}:
        frames.put(name, decode_rgb(files.image(name), max_pixels=_MAX_PIXELS))
