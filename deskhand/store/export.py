"""Export of a run to plain files that other programs can read. Used by `deskhand export`.

```
<folder>/run.json              format, run metadata, episode counts, checkpoints and groups
<folder>/metrics.jsonl         one JSON object per step
<folder>/episodes.jsonl        one JSON object per finished episode: its row, and the full record under "record"
<folder>/tensors/<id>.safetensors   arrays of the episode's call graph (below)
<folder>/frames/ab/abcd....png      screenshots, named by the SHA-256 of their raw RGB bytes
```

In a record, "graph" lists the calls in order: id, parent (the call whose prompt + output this prompt starts with, or
null), new_spans ([start, count, sha256] of images, in prompt positions), finish_reason, temperature, text. The
safetensors file contains, concatenated over the calls, `new_prompt_ids` (for a call with a parent only the prompt ids
after the parent's prompt + output), `token_ids` (sampled), `logprobs` (float64), `versions` of the weights, and
`served_ids`; `<name>_lengths` holds the length for each call (-1: equal to the prompt).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError
from deskhand.store.run import Run
from deskhand.store.scrub import Scrubber, scrubber_of

FORMAT = 2


def export_run(run: Run, folder: Path, *, scrub: bool = False) -> int:
    """Write the finished episodes with their screenshots and return their number; a failed export leaves nothing.

    `scrub`: without secrets in texts (`store.scrub`), and without screenshots and token arrays, which are not searched.

    Raises `ConfigError` if the folder is not empty, `InfrastructureError` if a screenshot is missing.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: not empty; export to a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        scrubber = (scrubber_of(run.metadata) or Scrubber()) if scrub else None
        count = _write(run, partial, scrubber)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if folder.exists():
        folder.rmdir()
    partial.rename(folder)
    return count


def _write(run: Run, folder: Path, scrubber: Scrubber | None) -> int:
    (folder / "tensors").mkdir(parents=True)
    count = 0
    with (folder / "episodes.jsonl").open("w", encoding="utf-8") as file:
        for row in run.episodes():
            if row.finished_at is None or row.state == "in_flight":
                continue
            record, tensors = run.episode(row.id)[1:] if run.has_record(row.id) else (None, b"")
            shown = record if scrubber is None else scrubber.value(record)
            file.write(json.dumps({**asdict(row), "record": shown}) + "\n")
            if record is not None and scrubber is None:
                (folder / "tensors" / f"{row.id}.safetensors").write_bytes(tensors)
                for sha256 in screens_of(record):
                    image = folder / "frames" / sha256[:2] / f"{sha256}.png"
                    if not image.exists():
                        image.parent.mkdir(parents=True, exist_ok=True)
                        image.write_bytes(run.frames.png(sha256))
            count += 1
    lines = "".join(json.dumps(line) + "\n" for line in run.metrics())
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    summary = {
        "format": FORMAT,
        "metadata": run.metadata if scrubber is None else scrubber.value(run.metadata),
        "episode_counts": run.episode_counts(),
        "checkpoints": [
            {"step": each.step, "version": each.version, "created_at": each.created_at} for each in run.checkpoints()
        ],
        "groups": [asdict(group) for group in run.groups()],
    }
    (folder / "run.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return count


def screens_of(record: Mapping[str, Any]) -> set[str]:
    """Return the names of all screenshots in an episode's record."""
    found = {step["frame_sha256"] for step in record["transcript"]["steps"]} | {
        record["transcript"]["last_frame_sha256"]
    }
    found |= {span[2] for call in record["graph"]["calls"] for span in call["new_spans"]}
    return {sha256 for sha256 in found if sha256}
