"""Runs as plain files. Invariant: what is exported can be loaded back equal, and needs nothing of this project to be read.

```
<folder>/run.json              format, what the run was created with, the ledger, checkpoints and groups
<folder>/metrics.jsonl         one JSON object per step
<folder>/episodes.jsonl        one JSON object per finished episode: its row, and under "record" what is known of it
<folder>/tensors/<id>.safetensors   arrays of the episode's call graph (below)
<folder>/frames/ab/abcd....png      screens, named by the SHA-256 of their raw RGB bytes
```

In a record, "graph" lists the calls in order: id, parent (the call whose prompt + output this prompt starts with, or null),
new_spans ([start, count, sha256] of images, in prompt positions), finish_reason, temperature, text. The safetensors file holds,
joined over the calls, `new_prompt_ids` (of a call with a parent only the prompt ids after the parent's prompt + output),
`token_ids` (sampled),
`logprobs` (float64), `versions` of the weights, and `served_ids`; `<name>_lengths` says how many each call has (-1: as the prompt).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.store.png_frames import PngFrames
from deskhand.store.run import EpisodeRow, Run

FORMAT = 1


def export_run(run: Run, folder: Path, *, purpose: str | None = None) -> int:
    """Write the finished episodes (of one purpose, or all) with their screens; returns how many.

    Raises `ConfigError` when the folder is not empty, `InfrastructureError` when a screen is missing. Nothing half-written is left.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; export to a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        count = _write(run, partial, purpose)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)
    return count


def _write(run: Run, folder: Path, purpose: str | None) -> int:
    (folder / "tensors").mkdir(parents=True)
    frames, count = PngFrames(folder / "frames"), 0
    with (folder / "episodes.jsonl").open("w", encoding="utf-8") as file:
        for row in run.episodes(purpose):
            if row.finished_at is None or row.state == "in_flight":
                continue
            record, tensors = run.episode(row.id)[1:] if run.has_record(row.id) else (None, b"")
            file.write(json.dumps({**asdict(row), "record": record}) + "\n")
            if record is not None:
                (folder / "tensors" / f"{row.id}.safetensors").write_bytes(tensors)
                for sha256 in screens_of(record):
                    frames.put(sha256, run.frames.png(sha256))
            count += 1
    lines = "".join(json.dumps(line) + "\n" for line in run.metrics())
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    about = {
        "format": FORMAT,
        "about": run.metadata,
        "books": run.episode_counts(),
        "checkpoints": [
            {"step": each.step, "version": each.version, "created_at": each.created_at} for each in run.checkpoints()
        ],
        "groups": [asdict(group) for group in run.groups()],
    }
    (folder / "run.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return count


def screens_of(record: Mapping[str, Any]) -> set[str]:
    """Names of all screens that an episode's record speaks of."""
    found = {step["frame_sha256"] for step in record["transcript"]["steps"]} | {
        record["transcript"]["last_frame_sha256"]
    }
    found |= {span[2] for call in record["graph"]["calls"] for span in call["new_spans"]}
    return {sha256 for sha256 in found if sha256}


def exported_about(folder: Path) -> dict[str, Any]:
    """run.json. Raises `ConfigError` when the folder is no export of this format."""
    path = Path(folder) / "run.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; give a folder that an export wrote") from error
    if about.get("format") != FORMAT:
        raise ConfigError(f"{path} is of format {about.get('format')}; this version reads format {FORMAT}")
    return about


def exported_episodes(folder: Path) -> Iterator[tuple[EpisodeRow, dict[str, Any] | None, bytes]]:
    """(row, record, tensors) of every exported episode, as `Run.episode` gives them; record None: killed before it was recorded."""
    exported_about(folder)
    folder = Path(folder)
    with (folder / "episodes.jsonl").open(encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            record = entry.pop("record")
            tensors = (folder / "tensors" / f"{entry['id']}.safetensors").read_bytes() if record is not None else b""
            yield EpisodeRow(**entry), record, tensors


def exported_frames(folder: Path) -> PngFrames:
    """The screens of an export."""
    return PngFrames(Path(folder) / "frames")
