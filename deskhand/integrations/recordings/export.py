"""Export of a run's recorded episodes as a dataset of another trainer: `export_recordings`. Used by `deskhand export`.

```
<folder>/deskhand.json             model, algorithm, `banned_ids` (whose logits are -inf in log-probs)
<folder>/train/metadata.jsonl      one row per line (`formats`); with its images a Hugging Face `imagefolder`
<folder>/train/images/<sha256>.png screenshots as the model was shown them, named by the SHA-256 of their RGB bytes
<folder>/train/<group>.safetensors for AReaL's rl form: the tensors of a group
```
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deskhand.algorithms.base import Algorithm, get_algorithm
from deskhand.config.load import config_of_run
from deskhand.errors import ConfigError, RecordError
from deskhand.integrations.recordings.formats import ROW_FORMATS, RowFormat, TextOf
from deskhand.integrations.recordings.rows import Form, RecordedRow, recorded_rows
from deskhand.models.load import load_processors
from deskhand.recorder.renderer import ChatRenderer
from deskhand.store.run import Run

Peer = Literal["datasets", "trl", "verl", "areal", "verifiers"]


@dataclass
class ExportCounts:
    """`rows` written, and sequences left out by cause."""

    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def export_recordings(
    run: Run, folder: Path, peer: Peer, form: Form, *, model: str | None = None, algorithm: Algorithm | None = None
) -> ExportCounts:
    """Write the recorded episodes; a failed export leaves nothing.

    Args:
        model: Checkpoint whose tokenizer sampled; None: the run's.
        algorithm: Algorithm of the advantages; None: the run's.

    Raises:
        ConfigError: The folder is not empty, or the run has no row for this form.
        InfrastructureError: A screenshot is missing.
    """
    if model is None or algorithm is None:
        config = config_of_run(run.metadata, run.folder)
        model, algorithm = model or config.model, algorithm or get_algorithm(config.trainer.algorithm)
    with new_folder(folder) as partial:
        train = partial / "train"
        train.mkdir(parents=True)
        if (peer, form) == ("areal", "rl"):
            counts = _write_trajectories(run, train, model, algorithm)
        else:
            tokenizer, _ = load_processors(model)
            renderer = ChatRenderer(tokenizer, source=model, history="preserve")
            texts = TextOf(tokenizer, renderer.image_id, folder.resolve() / "train")
            counts = _write_rows(run, train, recorded_rows(run, form, algorithm), ROW_FORMATS[peer, form], texts)
            facts = {"format": peer, "form": form, "model": model, "algorithm": algorithm.name}
            facts |= {"image_token_id": renderer.image_id, "banned_ids": [*renderer.banned_ids]}
            (partial / "deskhand.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if not counts.rows:
            causes = ", ".join(f"{count} {cause}" for cause, count in counts.left_out.items())
            needs = "a successful episode" if form == "sft" else "a scored training episode"
            raise ConfigError(
                f"{run.folder}: nothing to export, {form} needs {needs}{f' ({causes})' if causes else ''}"
            )
    return counts


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that becomes `folder` when all is written."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: not empty; write to a new folder")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        yield partial
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_rows(run: Run, train: Path, rows: Iterable[RecordedRow], convert: RowFormat, texts: TextOf) -> ExportCounts:
    counts, images = ExportCounts(), set[str]()
    with (train / "metadata.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            images.update(row.images)
            for line in _converted(row, convert, texts):
                if isinstance(line, RecordError):
                    counts.left_out[line.cause] += 1
                else:
                    file.write(json.dumps(line) + "\n")
                    counts.rows += 1
    for sha256 in images:
        path = train / "images" / f"{sha256}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(run.frames.png(sha256))
    return counts


def _converted(row: RecordedRow, convert: RowFormat, texts: TextOf) -> Iterator[dict[str, Any] | RecordError]:
    try:
        yield from convert(row, texts)
    except RecordError as error:
        yield error


def _write_trajectories(run: Run, train: Path, model: str, algorithm: Algorithm) -> ExportCounts:
    from deskhand.integrations.areal.run_dataset import load_trajectories
    from deskhand.integrations.areal.tensors import save_trajectory

    counts, name = ExportCounts(), algorithm.name
    if name not in ("grpo", "dr_grpo", "gspo"):
        raise ConfigError(f"trainer.algorithm: AReaL trains grpo, dr_grpo and gspo from rows, the run has {name}")
    for index, tensors in enumerate(load_trajectories(run, model, algorithm=name)):
        save_trajectory(tensors, train / f"{index:05}.safetensors")
        counts.rows += len(tensors["input_ids"])
    return counts
