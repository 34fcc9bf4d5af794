"""Checkpoints of a training run. Invariant: a checkpoint is complete or absent, and resuming from it goes on bit for bit.

    <folder>/step-000012/  model.safetensors, config.json, tokenizer...   an ordinary Hugging Face checkpoint, adapters merged in
                           model.safetensors.index.json                   tells servers that the next file holds no weights
                           trainer.safetensors                            optimizer moments; adapters, masters and critic if any
                           manifest.json                                  counters, caller's state, size and SHA-256 of every file

A checkpoint is written beside its place, flushed to disk and then renamed, so a kill at any moment leaves the former ones.
No random state is kept: all randomness of the trainer follows from its seed and step, that of what is sampled from the seeds of
episodes (`agents.draws`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from deskhand.errors import ConfigError
from deskhand.models.forward import unwrap
from deskhand.trainer.trainer import Trainer

_FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})")
_ASSETS = ("*.json", "*.jinja", "*.txt")
_PARAMETER = "parameter"


@dataclass(frozen=True, slots=True)
class Restored:
    """What was loaded. `state`: what the caller gave to `save`. `skipped`: one line for every newer checkpoint that was damaged."""

    step: int
    folder: Path
    state: dict[str, Any]
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The checkpoint with the highest held-out success so far; of equals the earlier."""

    step: int
    success: float


class CheckpointManager:
    """The checkpoints of one run: the last `keep`, the best and that of step 0. One process writes at a time."""

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
            save_file(_untied(trainer.policy.snapshot("cpu")), draft / "model.safetensors", metadata={"format": "pt"})
            (draft / "model.safetensors.index.json").write_text(_index(draft / "model.safetensors"))
            save_file(_trainer_tensors(trainer), draft / "trainer.safetensors")
            for file in draft.iterdir():
                _flush(file)
            manifest = {
                "format": _FORMAT,
                "steps": trainer.steps,
                "updates": trainer.updates,
                "adapter": trainer.policy.config.lora.model_dump() if trainer.policy.config.lora else None,
                "state": state or {},
                "files": {file.name: _fingerprint(file) for file in sorted(draft.iterdir())},
            }
            (draft / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
            _flush(draft / "manifest.json")
            _flush(draft)
            self._replace(draft, target)
        except (OSError, SafetensorError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
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

    def latest_valid_before(self, step: int) -> Path | None:
        """The folder of the newest checkpoint before `step` that is not damaged."""
        for candidate in reversed([each for each in self.steps() if each < step]):
            with suppress(ConfigError):
                verify(self.path(candidate))
                return self.path(candidate)
        return None

    def best(self) -> BestCheckpoint | None:
        """None before anything was rated. Raises `ConfigError` when what was noted cannot be read."""
        file = self.folder / "best.json"
        if not file.exists():
            return None
        try:
            noted = json.loads(file.read_text(encoding="utf-8"))
            return BestCheckpoint(int(noted["step"]), float(noted["success"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file}: unreadable; remove it, and the next evaluation writes it anew") from error

    def record_eval(self, step: int, success: float) -> bool:
        """Note a step's held-out success; a better one than all before is kept whatever follows, of equals the earlier step.

        Returns whether it is kept now.
        """
        before = self.best()
        if not math.isfinite(success) or (before is not None and before.step == step):
            return False
        if before is not None and (before.success, -before.step) > (success, -step):
            return False
        draft = self.folder / ".best.json"
        draft.write_text(json.dumps({"step": step, "success": success}) + "\n", encoding="utf-8")
        _flush(draft)
        draft.rename(self.folder / "best.json")
        _flush(self.folder)
        self._prune()
        return True

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
        best = self.best()
        kept = {0, best.step if best else 0}
        for step in [step for step in self.steps()[: -self.keep] if step not in kept]:
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
            raise ConfigError(
                f"{file}: format {manifest['format']}, this version reads {_FORMAT}; use the version that wrote it"
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: missing or unreadable; use another checkpoint") from error
    for name, expected in files.items():
        try:
            sound = _fingerprint(folder / name) == expected
        except OSError as error:
            raise ConfigError(f"{folder / name}: missing or unreadable; use another checkpoint") from error
        if not sound:
            raise ConfigError(f"{folder / name}: damaged (not the bytes that were saved); use another checkpoint")
    return manifest


def _trainer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """What the model's own weights do not hold, under `<moment, or "parameter">/<name>`."""
    held = {tensor.data_ptr() for tensor in unwrap(trainer.policy.model).state_dict().values()}
    tensors: dict[str, Tensor] = {}
    for prefix, parameters, optimizer in trainer.parts():
        for name, parameter in parameters.items():
            for moment, value in optimizer.state.get(parameter, {}).items():
                tensors[f"{moment}/{prefix}{name}"] = torch.as_tensor(value).detach().to("cpu", copy=True).contiguous()
            if trainer.policy.config.lora is not None or parameter.data_ptr() not in held:
                tensors[f"{_PARAMETER}/{prefix}{name}"] = parameter.detach().to("cpu", copy=True).contiguous()
    return tensors


def _index(weights: Path) -> str:
    """Which file holds each tensor of the model: without one vLLM and SGLang take every safetensors file for weights."""
    with safe_open(weights, framework="pt") as file:
        names = sorted(file.keys())
    return (
        json.dumps(
            {"metadata": {"total_size": weights.stat().st_size}, "weight_map": dict.fromkeys(names, weights.name)}
        )
        + "\n"
    )


def _restore(trainer: Trainer, folder: Path, manifest: dict[str, Any]) -> None:
    """Load weights, moments and counters; everything is read and compared before anything is changed."""
    adapter = trainer.policy.config.lora.model_dump(mode="json") if trainer.policy.config.lora else None
    if adapter != manifest["adapter"]:
        raise ConfigError(
            f"{folder / 'manifest.json'}: saved with adapter {manifest['adapter']}, now {adapter}; set them equal"
        )
    saved = _read(folder / "trainer.safetensors")
    copies: list[tuple[Tensor, Tensor]] = []

    def match(name: str, target: Tensor, value: Tensor | None) -> None:
        if value is None or value.shape != target.shape:
            raise ConfigError(
                f"{folder}: no {name} of shape {tuple(target.shape)}; resume with the trainer that was saved"
            )
        copies.append((target, value))

    held: set[int] = set()
    if adapter is None:
        weights = _read(folder / "model.safetensors")
        for name, target in _untied(unwrap(trainer.policy.model).state_dict()).items():
            match(name, target, weights.get(name))
            held.add(target.data_ptr())
    for prefix, parameters, _ in trainer.parts():
        for name, target in parameters.items():
            if target.data_ptr() not in held:
                match(prefix + name, target, saved.get(f"{_PARAMETER}/{prefix}{name}"))
    with torch.no_grad(), trainer.policy.lock:
        for target, value in copies:
            target.copy_(value)
        for prefix, parameters, optimizer in trainer.parts():
            optimizer.state.clear()
            for name, parameter in parameters.items():
                state = _state_of(saved, prefix + name, parameter, optimizer)
                if state:
                    optimizer.state[parameter] = state
            optimizer.zero_grad(set_to_none=True)
        trainer.sync_master_weights()
    trainer.steps, trainer.updates = manifest["steps"], manifest["updates"]


def _state_of(
    saved: dict[str, Tensor], name: str, parameter: Tensor, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """An optimizer's moments of one parameter. Its count of steps is a number in 8-bit optimizers, and lies on the processor unless
    the optimizer is fused."""
    found: dict[str, Any] = {}
    for key, value in saved.items():
        moment, _, owner = key.partition("/")
        if owner != name or moment == _PARAMETER:
            continue
        if moment != "step":
            found[moment] = value.to(parameter.device)
        elif isinstance(optimizer, torch.optim.AdamW):
            found[moment] = value.to(parameter.device) if optimizer.defaults.get("fused") else value
        else:
            found[moment] = int(value)
    return found


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file}: unreadable ({str(error).splitlines()[0]}); use another checkpoint") from error


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
