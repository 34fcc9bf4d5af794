"""Recorded sessions on disk. Invariant: a call is on disk, with its images, before its reply leaves, and whatever is killed at
whatever moment, what was on disk is read back equal.

```
<folder>/images/<2 hex>/<sha256>           the encoded bytes as received, named by the SHA-256 of their RGB pixels
<folder>/sessions/<name>/calls.jsonl     while the session is open: one line per call or reward, in order
<folder>/sessions/<name>/session.json      when it has ended: everything but the arrays
<folder>/sessions/<name>/calls.safetensors when it has ended: the arrays of its calls
```

`docs/recorder.md` describes the files. A line of the journal that was torn by a kill is the last one and its reply never left, so
it is left out. Numbers are kept exactly: int64 ids and versions, float64 log-probs.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from safetensors.numpy import load, save

from deskhand.errors import InfrastructureError, RecordError
from deskhand.recorder import append_log
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.rewards import Rewards

FORMAT = 1
_LINE_BYTES, _NUMBER_BYTES = 4000, 48
"""Room for a call's names, and for one of its numbers."""
_REMEMBERED = 1 << 17
"""Names of images that are known to be on disk."""
_ARRAYS = {
    "new_prompt_ids": np.int64,
    "token_ids": np.int64,
    "logprobs": np.float64,
    "versions": np.int64,
    "served_ids": np.int64,
}


def encode_arrays(graph: CallGraph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The graph's dictionary with its arrays taken out: each key's arrays joined, and the length that each call has of it.

    A length of -1 stands for null.
    """
    data = graph.to_dict()
    arrays: dict[str, np.ndarray] = {}
    for key, kind in _ARRAYS.items():
        found = [call.pop(key) for call in data["calls"]]
        arrays[key] = np.array([value for part in found if part is not None for value in part], dtype=kind)
        arrays[f"{key}_lengths"] = np.array([-1 if part is None else len(part) for part in found], dtype=np.int64)
    return data, arrays


def decode_arrays(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> CallGraph:
    """The graph that `pack` took apart."""
    calls = [dict(call) for call in data["calls"]]
    for key in _ARRAYS:
        position = 0
        for call, length in zip(calls, arrays[f"{key}_lengths"].tolist(), strict=True):
            call[key] = None if length < 0 else arrays[key][position : position + length].tolist()
            position += max(length, 0)
    return CallGraph.from_dict({**data, "calls": calls})


class SessionStore:
    """Sessions and images under `folder`, which is made. All methods block; those that write may be called from several threads.

    `durable`: wait until the disk has what is written (a power cut loses nothing); otherwise only a kill loses nothing.
    """

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder, self._durable = folder, durable
        self._open: dict[str, _Journal] = {}
        self._images: set[str] = set()
        self._lock = threading.Lock()
        (folder / "images").mkdir(parents=True, exist_ok=True)
        (folder / "sessions").mkdir(exist_ok=True)

    def save_image(self, sha256: str, encoded: bytes) -> None:
        """Keep an image; nothing is written when it is there already. Made for `ImageCache(on_new=...)`."""
        if sha256 in self._images:
            return
        path = self._image(sha256)
        if not path.exists():
            new_folder = not path.parent.exists()
            path.parent.mkdir(exist_ok=True)
            self._write_whole(path, encoded)
            if new_folder and self._durable:
                append_log.sync_folder(path.parent.parent)
        if len(self._images) >= _REMEMBERED:
            self._images.clear()
        self._images.add(sha256)

    def image(self, sha256: str) -> bytes:
        """The encoded bytes as received. Raises `KeyError` when there is no such image. Made for `ImageCache(fetch=...)`."""
        try:
            return self._image(sha256).read_bytes()
        except FileNotFoundError:
            raise KeyError(sha256) from None

    def write_call(self, session_id: str, call: Call) -> None:
        """Append a call to its session's journal. Made for `Recorder(journal=...)`."""
        journal = self._journal(session_id)
        with journal.lock:
            journal.add(call)

    def write_note(self, session_id: str, note: Mapping[str, Any]) -> None:
        """Append a reward to its session's journal. Made for `Recorder(note=...)`."""
        journal = self._journal(session_id)
        with journal.lock:
            journal.append({"note": dict(note)})

    def finish(self, session_id: str, graph: CallGraph, rewards: Rewards) -> Path:
        """Write a session that has ended as a whole and return its folder; its journal is removed when that is on disk."""
        folder = self.session_folder(session_id)
        folder.mkdir(exist_ok=True)
        data, arrays = encode_arrays(graph)
        self._write_whole(folder / "calls.safetensors", save(arrays))
        about = {"format": FORMAT, "session_id": session_id, "graph": data, "rewards": rewards.to_dict()}
        self._write_whole(folder / "session.json", json.dumps(about, ensure_ascii=False, indent=1).encode())
        with self._lock:
            journal = self._open.pop(session_id, None)
        if journal is not None:
            journal.close()
        (folder / "calls.jsonl").unlink(missing_ok=True)
        return folder

    def read(self, session_id: str) -> tuple[CallGraph, Rewards]:
        """A session as it ended, or as far as its journal goes. Raises `RecordError` when it is not there or cannot be read."""
        folder = self.session_folder(session_id)
        try:
            if (folder / "session.json").exists():
                about = json.loads((folder / "session.json").read_bytes())
                if about.get("format") != FORMAT:
                    raise RecordError(
                        "format", f"{folder / 'session.json'} is of format {about.get('format')}, not {FORMAT}"
                    )
                arrays = load((folder / "calls.safetensors").read_bytes())
                return decode_arrays(about["graph"], arrays), Rewards.from_dict(about["rewards"])
            return _read_journal((folder / "calls.jsonl").read_bytes())
        except FileNotFoundError as error:
            raise RecordError("unknown_session", f"{error.filename}: not there; no such session was recorded") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError("unreadable", f"{folder}: {type(error).__name__}: {str(error)[:200]}") from error

    def sessions(self) -> Iterator[tuple[str, bool]]:
        """(id, whether it has ended) of each session."""
        for folder in sorted((self.folder / "sessions").iterdir()):
            ended = (folder / "session.json").exists()
            if ended or (folder / "calls.jsonl").exists():
                yield _session_id(folder), ended

    def close(self) -> None:
        """Close the journals."""
        with self._lock:
            journals, self._open = list(self._open.values()), {}
        for journal in journals:
            journal.close()

    def _image(self, sha256: str) -> Path:
        if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
            raise KeyError(sha256)
        return self.folder / "images" / sha256[:2] / sha256

    def session_folder(self, session_id: str) -> Path:
        """Where a session's files are or would be; never outside of the record's folder."""
        name = quote(session_id, safe=" ")
        if name.startswith(".") or len(name) > 150:
            name = f"{name[:80].replace('.', '%2E')}~{hashlib.sha256(session_id.encode()).hexdigest()[:32]}"
        return self.folder / "sessions" / name

    def _journal(self, session_id: str) -> _Journal:
        with self._lock:
            if session_id not in self._open:
                folder = self.session_folder(session_id)
                folder.mkdir(exist_ok=True)
                try:
                    if (folder / "session.json").exists():
                        raise FileExistsError
                    self._open[session_id] = _Journal(folder / "calls.jsonl", session_id, self._durable)
                except FileExistsError:
                    words = f"{folder} holds another session of that id; give each session an id of its own"
                    raise InfrastructureError(words) from None
            return self._open[session_id]

    def _write_whole(self, path: Path, data: bytes) -> None:
        partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            with partial.open("wb") as file:
                file.write(data)
                if self._durable:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        if self._durable:
            append_log.sync_folder(path.parent)


class _Journal:
    """An open journal. Of a call that extends another only what comes after it is written, so an episode's file grows linearly."""

    def __init__(self, path: Path, session_id: str, durable: bool) -> None:
        self.lock = threading.Lock()
        self._graph = CallGraph()
        self._durable = durable
        self._file = append_log.open_new(path)
        try:
            self.append({"format": FORMAT, "session_id": session_id})
            if durable:
                append_log.sync_folder(path.parent)
                append_log.sync_folder(path.parent.parent)
        except OSError:  # nothing was recorded in it yet, so the next call may try again
            self.close()
            path.unlink(missing_ok=True)
            raise

    def add(self, call: Call) -> None:
        """Append a call. Raises `RecordError("wire")` when its line is longer than any ids, log-probs and text of it can be."""
        entry = self._graph.dict_of(call)
        numbers = len(entry["new_prompt_ids"]) + len(call.completion.token_ids) * (2 + _width(call))
        limit = _LINE_BYTES + _NUMBER_BYTES * numbers + 8 * len(call.text) + 100 * len(entry["new_spans"])
        self.append({"call": entry}, limit)
        self._graph.add(call)

    def append(self, line: Mapping[str, Any], limit: int | None = None) -> None:
        written = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if limit is not None and len(written) > limit:
            raise RecordError(
                "wire", f"a call's line has {len(written)} bytes, at most {limit} are its own; images go by hash"
            )
        append_log.append(self._file, written, durable=self._durable)

    def close(self) -> None:
        with self.lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


def _width(call: Call) -> int:
    """Numbers per sampled token besides its log-prob and version: those of its alternatives."""
    return 2 * len(call.completion.top_logprobs[0]) if call.completion.top_logprobs else 1


def _read_journal(raw: bytes) -> tuple[CallGraph, Rewards]:
    graph, rewards = CallGraph(), Rewards()
    lines = raw.split(b"\n")[:-1]
    for number, line in enumerate(lines):
        entry = json.loads(line)
        if number == 0 and entry.get("format") != FORMAT:
            raise RecordError(
                "format", f"a journal of format {entry.get('format')}; this version reads format {FORMAT}"
            )
        if "call" in entry:
            graph.add_dict(entry["call"])
        elif "note" in entry:
            note = entry["note"]
            if note["call_id"] is None:
                rewards.give_episode(note["reward"])
            else:
                rewards.give(graph.ids, note["reward"], note["call_id"])
    return graph, rewards


def _session_id(folder: Path) -> str:
    for name in ("session.json", "calls.jsonl"):
        try:
            with (folder / name).open("rb") as file:
                head = json.loads(file.read() if name == "session.json" else file.readline())
            return head["session_id"]
        except (FileNotFoundError, ValueError, KeyError):
            continue
    return unquote(folder.name)
