"""Checkpoints of a training run.

Used by the recipes; start with `CheckpointManager`.

    <folder>/step-000012/model.safetensors, config.json, ...   a Hugging Face checkpoint, LoRA merged in
                         model.safetensors.index.json          keeps servers from reading the next file as weights
                         trainer.safetensors                   optimizer moments, LoRA, master weights, critic
                         manifest.json                         counters, caller's state, size and SHA-256 of files
                                                               and of itself

No random state is stored: the trainer's follows from its seed and step, sampling from the episodes' seeds
(`agents.seeding`).

Invariant: a checkpoint is complete or absent (it is written next to its folder, flushed and renamed), and resuming
from it is bit-exact.
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

from deskhand.errors import ConfigError, HealthError
from deskhand.models.families import FAMILIES
from deskhand.models.forward import unwrap
from deskhand.models.hub import AGENT_FILE
from deskhand.trainer.muon import MuonAdamW
from deskhand.trainer.offload import OffloadedAdamW
from deskhand.trainer.trainer import Trainer

_FORMAT = 1
_NAME = re.compile(r"step-(\d{6,})")
_ASSETS = ("*.json", "*.jinja", "*.txt")
_PARAMETER = "parameter"
_SELF = "manifest"
"""Key of the manifest's own hash."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A loaded checkpoint."""

    step: int
    folder: Path
    state: dict[str, Any]
    """State passed to `save`."""
    skipped: list[str] = field(default_factory=list)
    """Errors of newer checkpoints that are damaged."""


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The checkpoint with the highest success on the validation split so far; the earlier one of equals."""

    step: int
    success: float


class CheckpointManager:
    """Checkpoints of one run; keeps the last `keep`, the best and that of step 0. Only one process may write."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ConfigError(f"keep: must be at least 1, got {keep}")
        self.folder = folder
        self.keep = keep

    def steps(self) -> list[int]:
        """Return the steps that have a folder, in order, including damaged ones."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}"

    def save(self, trainer: Trainer, assets: Path, state: dict[str, Any] | None = None) -> Path:
        """Write the checkpoint of the trainer's current step and return its folder.

        Tokenizer, chat template and preprocessor files are copied from the folder `assets`; `state` is returned by
        `load`. Raises `ConfigError` if the disk cannot be written.
        """
        target = self.path(trainer.steps)
        draft = self.folder / f".saving-{target.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            for file in sorted({file for pattern in _ASSETS for file in assets.glob(pattern)}):
                if not file.name.endswith(".index.json") and file.name not in ("manifest.json", AGENT_FILE):
                    shutil.copyfile(file, draft / file.name)
            model = unwrap(trainer.policy.model)
            model.config.save_pretrained(draft)
            weights = _untied(trainer.policy.checkpoint_weights())
            save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
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
            manifest = json.loads(json.dumps(manifest))  # as `verify` reads it: keys are texts then
            manifest[_SELF] = _digest(manifest)
            (draft / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
            _flush(draft / "manifest.json")
            _flush(draft)
            self._replace(draft, target)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(draft, ignore_errors=True)  # the episodes need the space
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
            raise ConfigError(f"{target}: cannot be written ({why}); free disk space") from error
        self._prune()
        return target

    def load(self, trainer: Trainer, step: int | None = None) -> Restored | None:
        """Load the newest valid checkpoint, or that of `step`, into `trainer`; return None if there is none.

        Raises `ConfigError` if the requested checkpoint, all of them, or best.json are damaged.
        """
        self.best()  # unreadable: before the training, not when it saves
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
            raise ConfigError(f"{skipped[0]} (all older checkpoints are damaged, too)")
        return None

    def latest_valid_before(self, step: int) -> Path | None:
        """Return the newest valid checkpoint before `step`; None if there is none."""
        for path in (self.path(each) for each in reversed(self.steps()) if each < step):
            with suppress(ConfigError):
                verify(path)
                return path
        return None

    def best(self) -> BestCheckpoint | None:
        """Return the best checkpoint; None before any evaluation. Raises `ConfigError` if best.json is unreadable."""
        file = self.folder / "best.json"
        if not file.exists():
            return None
        try:
            entry = json.loads(file.read_text(encoding="utf-8"))
            return BestCheckpoint(int(entry["step"]), float(entry["success"]))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise ConfigError(f"{file}: unreadable; delete it, the next evaluation rewrites it") from error

    def record_eval(self, step: int, success: float) -> bool:
        """Record the success of a step on the validation split; return whether it is the best so far.

        Raises `ConfigError` if the disk cannot be written.
        """
        before = self.best()
        if not math.isfinite(success) or (before is not None and before.step == step):
            return False
        if before is not None and (before.success, -before.step) > (success, -step):
            return False
        draft, target = self.folder / ".best.json", self.folder / "best.json"
        try:
            draft.write_text(json.dumps({"step": step, "success": success}) + "\n", encoding="utf-8")
            _flush(draft)
            draft.rename(target)
            _flush(self.folder)
        except OSError as error:
            raise ConfigError(f"{target}: cannot be written ({error.strerror}); free disk space") from error
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
        """Delete old checkpoints. They are renamed first, so that a kill leaves no partial checkpoint."""
        best = self.best()
        kept = {0, best.step if best else 0}
        for step in [step for step in self.steps()[: -self.keep] if step not in kept]:
            self.path(step).rename(self.folder / f".pruned-{self.path(step).name}")
        for left in self.folder.glob(".pruned-*"):
            shutil.rmtree(left, ignore_errors=True)


def verify(folder: Path) -> dict[str, Any]:
    """Check the size and hash of all files; return the manifest. Raises `ConfigError` if one is missing or damaged."""
    file = folder / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        if manifest["format"] != _FORMAT:
            raise ConfigError(f"{file}: checkpoint format {manifest['format']}, this version reads format {_FORMAT}")
        if manifest.get(_SELF, _digest(manifest)) != _digest(manifest):  # absent from older checkpoints
            raise ValueError("its hash differs")
        _ = [manifest[key] for key in ("steps", "updates", "adapter", "state")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: missing or damaged; use another checkpoint") from error
    for name, expected in files.items():
        try:
            valid = _fingerprint(folder / name) == expected
        except OSError as error:
            raise ConfigError(f"{folder / name}: missing or unreadable; use another checkpoint") from error
        if not valid:
            raise ConfigError(f"{folder / name}: damaged (its hash differs from the manifest); use another checkpoint")
    return manifest


def _trainer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    """Return the tensors that model.safetensors lacks, as `<moment, or "parameter">/<name>`."""
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
    """Return the index of the model's tensors. Without it vLLM and SGLang read every safetensors file as weights."""
    with safe_open(weights, framework="pt") as file:
        names = sorted(file.keys())
    index = {"metadata": {"total_size": weights.stat().st_size}, "weight_map": dict.fromkeys(names, weights.name)}
    return json.dumps(index) + "\n"


def _restore(trainer: Trainer, folder: Path, manifest: dict[str, Any]) -> None:
    """Load weights, moments and counters. Everything is read and compared before anything is changed."""
    adapter = trainer.policy.config.lora.model_dump(mode="json") if trainer.policy.config.lora else None
    if adapter != manifest["adapter"]:
        saved_with = f"checkpoint {folder} was saved with {manifest['adapter']}"
        raise ConfigError(f"policy.lora: {saved_with}, got {adapter}; use its settings")
    saved = _read(folder / "trainer.safetensors")
    copies: list[tuple[Tensor, Tensor]] = []

    def match(name: str, target: Tensor, value: Tensor | None) -> None:
        if value is None or value.shape != target.shape:
            raise ConfigError(
                f"{folder}: has no {name} of shape {tuple(target.shape)}; resume with the trainer settings of the run"
            )
        copies.append((target, value))

    held: set[int] = set()
    if adapter is None:
        family = FAMILIES[unwrap(trainer.policy.model).config.model_type]
        weights = family.stored(_read(folder / "model.safetensors"))
        for name, target in _untied(unwrap(trainer.policy.model).state_dict()).items():
            match(name, target, weights.get(name))
            held.add(target.data_ptr())
    for prefix, parameters, optimizer in trainer.parts():
        _check_moments(saved, {prefix + name for name in parameters}, optimizer, folder)
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
        _check_restored(trainer, saved, folder)
    trainer.steps, trainer.updates = manifest["steps"], manifest["updates"]


def _check_moments(saved: dict[str, Tensor], names: set[str], optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Raise `ConfigError` for moments of another optimizer, which would fail in the middle of an update."""
    kept = {moment for moment, _, name in (key.partition("/") for key in saved) if name in names} - {_PARAMETER}
    saved_by = "muon" if "momentum_buffer" in kept else "adamw_8bit" if "state1" in kept else "adamw"
    own = {MuonAdamW: "muon", torch.optim.AdamW: "adamw", OffloadedAdamW: "adamw"}.get(type(optimizer), "adamw_8bit")
    if kept and saved_by != own:
        raise ConfigError(
            f"trainer.optimizer: checkpoint {folder} was saved with {saved_by}, got {own}; resume with the trainer "
            "settings of the run"
        )


def _check_restored(trainer: Trainer, saved: dict[str, Tensor], folder: Path) -> None:
    """Raise `HealthError` unless the trainer has the stored moments and trained tensors, bit for bit."""
    for prefix, parameters, optimizer in trainer.parts():
        for name, parameter in parameters.items():
            held = {key: torch.as_tensor(value) for key, value in optimizer.state.get(parameter, {}).items()}
            held[_PARAMETER] = parameter.detach()
            for key in (_PARAMETER, *sorted({stored.partition("/")[0] for stored in saved} - {_PARAMETER})):
                stored, value = saved.get(f"{key}/{prefix}{name}"), held.get(key)
                if stored is not None and (value is None or not torch.equal(value.cpu(), stored)):
                    raise HealthError(
                        f"invariant resumed_state: {key} of {prefix}{name} differs from {folder}; resume with the "
                        "versions of deskhand and torch that wrote it"
                    )


def _state_of(
    saved: dict[str, Tensor], name: str, parameter: Tensor, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    # The step count is an int in 8-bit optimizers, and a CPU tensor unless the optimizer is fused.
    found: dict[str, Any] = {}
    for key, value in saved.items():
        moment, _, owner = key.partition("/")
        if owner != name or moment == _PARAMETER:
            continue
        if moment != "step":
            offloaded = isinstance(optimizer, OffloadedAdamW)
            found[moment] = optimizer.host_state(parameter, value) if offloaded else value.to(parameter.device)
        elif isinstance(optimizer, torch.optim.AdamW | MuonAdamW):
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
    """Return each tensor under its first name only; safetensors rejects shared tensors."""
    names: dict[int, str] = {}
    for name, tensor in weights.items():
        names.setdefault(tensor.data_ptr(), name)
    return {name: weights[name].contiguous() for name in names.values()}


def _fingerprint(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _digest(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its own."""
    rest = {key: value for key, value in manifest.items() if key != _SELF}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
