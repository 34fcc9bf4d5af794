"""Checkpoints of a training run. Invariant: a checkpoint is complete or absent, and resuming from it goes on bit for bit.

    <folder>/step-000012/  model.safetensors, config.json, tokenizer...   an ordinary Hugging Face checkpoint, adapters merged in
                           trainer.safetensors                            optimizer moments, and the adapters when there are any
                           manifest.json                                  counters, caller's state, size and SHA-256 of every file

A checkpoint is written beside its place, flushed to disk and then renamed, so a kill at any moment leaves the former ones.
No random state is kept: all randomness of the trainer follows from its seed and step.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.models.forward import unwrap
from deskhand.training.trainer import Trainer

_FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})")
_ASSETS = ("*.json", "*.jinja", "*.txt")
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class Restored:
    """What was loaded. `state`: what the caller gave to `save`. `skipped`: one line for every newer checkpoint that was damaged."""

    step: int
    folder: Path
    state: dict[str, Any]
    skipped: list[str] = field(default_factory=list)


class Checkpoints:
    """The checkpoints of one run: the last `keep` and that of step 0. One process writes at a time."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoints to keep: {keep}; keep at least 1")
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Steps that have a folder, in order, damaged ones included."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def save(self, trainer: Trainer, assets: Path, state: dict[str, Any] | None = None) -> Path:
        """Write the checkpoint of the trainer's present step. `assets`: checkpoint folder whose small files (tokenizer, chat
        template, preprocessor) go along. `state`: JSON-able, given back by `load`. Raises `ConfigError` when the disk refuses.
        """
        target = self.path(trainer.steps)
        draft = self.folder / f".saving-{target.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            for file in sorted({file for pattern in _ASSETS for file in assets.glob(pattern)}):
                if not file.name.endswith(".index.json") and file.name != "manifest.json":
                    shutil.copyfile(file, draft / file.name)
            model = unwrap(trainer.policy.model)
            model.config.save_pretrained(draft)
            save_file(_untied(trainer.policy.snapshot()), draft / "model.safetensors", metadata={"format": "pt"})
            save_file(_trainer_tensors(trainer), draft / "trainer.safetensors")
            for file in draft.iterdir():
                _flush(file)
            manifest = {
                "format": _FORMAT,
                "steps": trainer.steps,
                "updates": trainer.updates,
                "adapter": trainer.policy.config.adapter.model_dump() if trainer.policy.config.adapter else None,
                "state": state or {},
                "files": {file.name: _fingerprint(file) for file in sorted(draft.iterdir())},
            }
            (draft / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
            _flush(draft / "manifest.json")
            _flush(draft)
            self._replace(draft, target)
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(f"{target}: cannot be written ({why}); free the disk or change the folder") from error
        self._prune()
        return target

    def load(self, trainer: Trainer, step: int | None = None) -> Restored | None:
        """Restore the newest sound checkpoint (or that of `step`) into `trainer`; None when there is none at all.

        Raises `ConfigError` naming the file when every checkpoint is damaged, or the one asked for is.
        """
        skipped: list[str] = []
        for candidate in reversed(self.steps()) if step is None else [step]:
            try:
                manifest = verify(self.path(candidate))
                _restore(trainer, self.path(candidate), manifest)
                return Restored(candidate, self.path(candidate), manifest["state"], skipped)
            except ConfigError as error:
                if step is not None:
                    raise
                skipped.append(str(error))
        if skipped:
            raise ConfigError(f"{skipped[0]} (no older checkpoint is sound)")
        return None

    def _replace(self, draft: Path, target: Path) -> None:
        old = self.folder / f".replaced-{target.name}"
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        draft.rename(target)
        _flush(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def _prune(self) -> None:
        """Remove what is no longer kept: out of sight in one rename first, so that a kill leaves no half of a checkpoint."""
        for step in [step for step in self.steps() if step != 0][: -self.keep]:
            self.path(step).rename(self.folder / f".pruned-{self.path(step).name}")
        for left in self.folder.glob(".pruned-*"):
            shutil.rmtree(left, ignore_errors=True)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files all have the size and the hash that it states; `ConfigError` otherwise."""
    file = folder / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["format"] != _FORMAT:
            raise ConfigError(f"{file}: format {manifest['format']}, this version reads {_FORMAT}; use the version that wrote it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: missing or unreadable; resume from another checkpoint") from error
    for name, expected in files.items():
        try:
            sound = _fingerprint(folder / name) == expected
        except OSError as error:
            raise ConfigError(f"{folder / name}: missing or unreadable; resume from another checkpoint") from error
        if not sound:
            raise ConfigError(f"{folder / name}: damaged (not the bytes that were saved); resume from another checkpoint")
    return manifest


def _trainer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainer.policy.parameters().items():
        for moment, value in trainer.optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}/{name}"] = value.detach().clone().contiguous()
        if trainer.policy.config.adapter is not None:
            tensors[f"parameter/{name}"] = parameter.detach().clone().contiguous()
    return tensors


def _restore(trainer: Trainer, folder: Path, manifest: dict[str, Any]) -> None:
    """Load weights, moments and counters; everything is read and compared before anything is changed."""
    adapter = trainer.policy.config.adapter.model_dump(mode="json") if trainer.policy.config.adapter else None
    if adapter != manifest["adapter"]:
        raise ConfigError(f"{folder / 'manifest.json'}: saved with adapter {manifest['adapter']}, now {adapter}; set them equal")
    model, parameters = unwrap(trainer.policy.model), trainer.policy.parameters()
    saved = _read(folder / "trainer.safetensors")
    if adapter is None:
        weights, targets = _read(folder / "model.safetensors"), _untied(model.state_dict())
    else:
        weights, targets = {name: saved.get(f"parameter/{name}") for name in parameters}, parameters
    for name, target in targets.items():
        value = weights.get(name)
        if value is None or value.shape != target.shape:
            raise ConfigError(f"{folder}: no {name} of shape {tuple(target.shape)}; resume with the model that was saved")
    moments: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        moment, _, name = key.partition("/")
        if moment in _MOMENTS and name in parameters:
            moments.setdefault(name, {})[moment] = value
    with torch.no_grad(), trainer.policy.lock:
        for name, target in targets.items():
            value = weights[name]
            assert value is not None
            target.copy_(value)
        trainer.optimizer.state.clear()
        for name, state in moments.items():
            trainer.optimizer.state[parameters[name]] = {
                moment: value.to(parameters[name].device) for moment, value in state.items()
            }
        trainer.optimizer.zero_grad(set_to_none=True)
    trainer.steps, trainer.updates = manifest["steps"], manifest["updates"]


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file}: unreadable ({str(error).splitlines()[0]}); resume from another checkpoint") from error


def _untied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor under its first name only, as safetensors wants."""
    names: dict[int, str] = {}
    for name, tensor in weights.items():
        names.setdefault(tensor.data_ptr(), name)
    return {name: weights[name].contiguous() for name in names.values()}


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
