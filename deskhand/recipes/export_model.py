"""Export a checkpoint as a Hugging Face folder with a model card. Entry point: `export_model`.

The export contains the merged weights, or LoRA alone in peft's format; `models.load` reads both. The folder appears
complete or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deskhand.config.load import Config, config_of_run
from deskhand.errors import ConfigError
from deskhand.recipes.model_defaults import write_agent_file
from deskhand.rollout.eval_loop import build_eval_report
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import TRAIN, Checkpoint, Run

TRAINER_FILES = ("manifest.json", "trainer.safetensors")
"""Checkpoint files that only the trainer reads."""
ADAPTER_FILES = ("tokenizer*", "preprocessor_config.json", "chat_template.jinja")


def export_model(run: Run, folder: Path, *, step: int | None = None, adapter: bool = False) -> Path:
    """Write the checkpoint of `step` (None: the last) to a new folder; returns the folder.

    Raises:
        ConfigError: There is no such checkpoint, the folder is not empty or cannot be created, or `adapter` is set for
            a run without LoRA.
    """
    from deskhand.trainer.checkpoint import verify

    found = run.checkpoint(step)
    if found is None or not found.path.is_dir():
        raise ConfigError(
            f"{run.folder}: no checkpoint{'' if step is None else f' of step {step}'}; use an available step"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder}: is not empty; export to a new folder")
    config, manifest = config_of_run(run.metadata, run.folder), verify(found.path)
    if adapter and not manifest["adapter"]:
        raise ConfigError(f"--adapter: {run.folder} was trained without LoRA; remove --adapter")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if folder.exists():
            folder.rmdir()
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created: {error.strerror}; use another folder") from error
    if adapter:
        _write_adapter(found.path, partial, manifest["adapter"], config.model)
    else:
        for file in sorted(found.path.iterdir()):
            if file.name not in TRAINER_FILES:
                shutil.copyfile(file, partial / file.name)
    write_agent_file(config.agent, partial)
    text = model_card(run, config, found, manifest, adapter=adapter)
    (partial / "README.md").write_text(text, encoding="utf-8")
    partial.rename(folder)
    return folder


def _write_adapter(checkpoint: Path, folder: Path, settings: Mapping[str, Any], base: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors with peft's names."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    from deskhand.config.trainer import LoraConfig
    from deskhand.trainer.lora import peft_config, peft_key

    tensors = {}
    with safe_open(checkpoint / "trainer.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            if name.startswith("parameter/") and ".lora_" in name:
                tensors[peft_key(name.removeprefix("parameter/"))] = file.get_tensor(name)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    values = peft_config(LoraConfig.model_validate(settings), base)
    (folder / "adapter_config.json").write_text(json.dumps(values, indent=1) + "\n")
    for pattern in ADAPTER_FILES:
        for file in checkpoint.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def model_card(run: Run, config: Config, checkpoint: Checkpoint, manifest: Mapping[str, Any], *, adapter: bool) -> str:
    """Return the README.md of an exported checkpoint: data, seeds and results, all read from the run."""
    about, model = run.metadata, config.model
    changed = config.model_dump(mode="json", exclude_defaults=True)
    head: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "image-text-to-text"}
    if "/" in model and not Path(model).exists():
        head["base_model"] = model
    head["tags"] = ["deskhand", "computer-use"]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {about.get('title') or Path(model).name}",
        f"{'Adapter for' if adapter else 'Weights of'} `{model}` after {manifest['updates']} updates in "
        f"{checkpoint.step} steps. Trained with Deskhand; all numbers below were read from the run."
        f"{_quantization_note(manifest['adapter'], adapter=adapter)}",
        "## Data\n\n" + "\n".join([*_data(run, checkpoint, manifest), *_before(model)]),
        "## Success\n\n" + "\n".join(_figures(run, checkpoint)),
        "## How it was made\n\n" + "\n".join(f"- {key}: {value}" for key, value in about.get("facts", {}).items()),
        f"Settings that differ from the defaults:\n\n```yaml\n{yaml.safe_dump(changed, sort_keys=False)}```",
    ]
    return "\n\n".join(parts) + "\n"


def _quantization_note(settings: Mapping[str, Any] | None, *, adapter: bool) -> str:
    """A note on weights that were stored in 4 bits."""
    if not settings or not settings["load_in_4bit"]:
        return ""
    what = (
        "the results are of the adapter on the quantized weights"
        if adapter
        else "these weights are the dequantized ones"
    )
    return f" The projections of the language model were stored in 4 bits (NF4, double quantization): {what}."


def _data(run: Run, checkpoint: Checkpoint, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Training data up to this checkpoint: families, tasks, seeds."""
    if not checkpoint.step:
        yield "- none in this run: these are its initial weights"
        return
    for part in manifest["state"].get("demonstrations", ()):  # of a warm start
        yield _line(part["source"], part["episodes"], part["tasks"], part["families"], part["seeds"])
    if screens := manifest["state"].get("screens"):
        yield (
            f"- {screens['count']} screenshots with questions about their elements, of start states of "
            f"{', '.join(screens['families'])}; seeds from {screens['first_seed']} of the training split"
        )
    rows = [row for row in run.episodes(TRAIN, "trained") if row.step is not None and row.step <= checkpoint.step]
    if rows:
        families, seeds = sorted({row.family for row in rows}), [row.seed for row in rows]
        yield _line(
            "the policy itself", len(rows), len({row.task_id for row in rows}), families, [min(seeds), max(seeds)]
        )
    lost = Counter(row.cause or "unknown" for row in run.episodes(TRAIN, "errored"))
    if lost:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(lost.items()))
        yield f"- {lost.total()} more episodes errored (by cause: {causes}) and were not trained on"


def _line(source: str, episodes: int, tasks: int, families: Sequence[str], seeds: Sequence[int]) -> str:
    if not tasks:
        return f"- {episodes} conversations from {source}; their tasks are unknown"
    return (
        f"- {episodes} episodes of {source} on {tasks} tasks of {', '.join(families)}; seeds "
        f"{seeds[0]} to {seeds[1]} of the training split"
    )


def _before(model: str) -> Iterator[str]:
    """Training data of the initial model, if it is a checkpoint of another run, recursively."""
    from deskhand.trainer.checkpoint import verify

    path = Path(model).expanduser()
    folder = path.parent.parent
    if path.parent.name == "checkpoints" and (folder / "run.sqlite").exists():
        with Run.open(folder, read_only=True) as run:
            try:
                manifest = verify(path)
            except ConfigError:
                yield f"- before this run, in {folder.name}: unknown, the checkpoint {path.name} is gone"
                return
            found = run.checkpoint(manifest["steps"])
            if found is not None:
                for line in _data(run, found, manifest):
                    yield f"{line} (before this run, in {folder.name})"
            yield from _before(run.metadata.get("config", {}).get("model", ""))
    elif path.is_dir():
        known = (path / "README.md").is_file()
        source = f"see the card of `{path.name}`" if known else f"unknown, `{path.name}` has no card"
        yield f"- before this run: {source}"


def _figures(run: Run, checkpoint: Checkpoint) -> Iterator[str]:
    """Success before and after on the same tasks and samples, with Wilson intervals."""
    names = "version-0", f"version-{checkpoint.version}"
    played = [{(row.task_id, row.member) for row in run.episodes(name, "scored")} for name in names]
    both = played[0] & played[1] or None
    before, after = (build_eval_report(run, name, both) for name in names)
    if not after.success.total:
        command = f"deskhand eval {run.folder} --step {checkpoint.step}"
        yield f"Version {checkpoint.version} has not been evaluated; run `{command}`."
        return
    held = [row for row in run.episodes(after.name, "scored") if both is None or (row.task_id, row.member) in both]
    yield "| family | before | after |\n|---|---|---|"
    rows: list[tuple[str, Proportion, Proportion]] = [("all families", before.success, after.success)]
    rows += [(name, before.by_family.get(name, Proportion(0, 0)), rate) for name, rate in after.by_family.items()]
    for name, first, second in rows:
        yield f"| {name} | {_cell(first)} | {_cell(second)} |"
    seeds, report = [row.seed for row in held], build_eval_report(run, names[1])
    span = f"seeds {min(seeds)} to {max(seeds)}" if seeds else "none"
    errored = "None errored."
    if report.num_unscored:
        of_started = str(report.success_of_started).strip()
        errored = f"{report.num_unscored} errored and do not count; success of all that were started: {of_started}."
    splits = ", ".join(sorted({row.split for row in held})) or "none"
    yield f"\nTasks of the split {splits}, {span}; 95 % Wilson intervals. {errored}"


def _cell(rate: Proportion) -> str:
    return str(rate).strip() if rate.total else "not evaluated"
