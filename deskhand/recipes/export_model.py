"""`deskhand export`: a run's checkpoint as a Hugging Face folder. Invariant: what is written is the weights of that checkpoint, and
every figure on its card was read from the run.

Merged: an ordinary checkpoint. Adapter: what peft reads, to be laid over the base model that its config names. `models.load` takes
both. The folder appears whole or not at all.
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
from deskhand.rollout.eval_loop import EvalReport, build_eval_report
from deskhand.rollout.success_rates import Proportion
from deskhand.store.run import TRAIN, Checkpoint, EpisodeRow, Run

PRIVATE = ("manifest.json", "trainer.safetensors")
"""Files of a checkpoint that only its trainer reads."""
NEEDED_BY_ADAPTER = ("tokenizer*", "preprocessor_config.json", "chat_template.jinja")


def export_model(run: Run, folder: Path, *, step: int | None = None, adapter: bool = False) -> Path:
    """Write the checkpoint of `step` (None: the last) to a new folder; returns it.

    Raises `ConfigError` when there is no such checkpoint, the folder is not empty or cannot be made,
    or `adapter` is asked of a run without one.
    """
    from deskhand.trainer.checkpoint import verify

    found = run.checkpoint(step)
    if found is None or not found.path.is_dir():
        raise ConfigError(
            f"{run.folder} has no checkpoint{'' if step is None else f' of step {step}'}; name a step that is kept"
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; export to a new folder")
    config, manifest = config_of_run(run.metadata, run.folder), verify(found.path)
    if adapter and not manifest["adapter"]:
        raise ConfigError(f"{run.folder} was trained without adapters; leave --adapter out")
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if folder.exists():
            folder.rmdir()
        partial.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); name another folder") from error
    if adapter:
        _write_adapter(found.path, partial, manifest["adapter"], config.model)
    else:
        for file in sorted(found.path.iterdir()):
            if file.name not in PRIVATE:
                shutil.copyfile(file, partial / file.name)
    text = model_card(run, config.model, _changed(config), found, manifest, adapter=adapter)
    (partial / "README.md").write_text(text, encoding="utf-8")
    partial.rename(folder)
    return folder


def _write_adapter(checkpoint: Path, folder: Path, settings: Mapping[str, Any], base: str) -> None:
    """adapter_config.json and adapter_model.safetensors, with the names that peft gives to a model's own adapters."""
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
    for pattern in NEEDED_BY_ADAPTER:
        for file in checkpoint.glob(pattern):
            shutil.copyfile(file, folder / file.name)


def model_card(
    run: Run,
    model: str,
    changed: Mapping[str, Any],
    checkpoint: Checkpoint,
    manifest: Mapping[str, Any],
    *,
    adapter: bool,
) -> str:
    """README.md of an exported checkpoint: data, seeds and figures, all of them from the run. `changed`: settings that are not the
    defaults."""
    about, name = run.metadata, Path(model).name
    head: dict[str, Any] = {"library_name": "peft" if adapter else "transformers", "pipeline_tag": "image-text-to-text"}
    if "/" in model and not Path(model).exists():
        head["base_model"] = model
    head["tags"] = ["deskhand", "computer-use"]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {about.get('title') or name}",
        f"{'Adapter for' if adapter else 'Weights of'} `{model}` after {manifest['updates']} updates in {checkpoint.step} "
        f"steps. Made with Deskhand; every figure below was read from the run.{_rounding(manifest['adapter'], adapter=adapter)}",
        "## Data\n\n" + "\n".join([*_data(run, checkpoint, manifest), *_before(model)]),
        "## Held-out success\n\n" + "\n".join(_figures(run, checkpoint)),
        "## How it was made\n\n" + "\n".join(f"- {key}: {value}" for key, value in about.get("facts", {}).items()),
        f"Settings that are not the defaults:\n\n```yaml\n{yaml.safe_dump(changed, sort_keys=False)}```",
    ]
    return "\n\n".join(parts) + "\n"


def _rounding(settings: Mapping[str, Any] | None, *, adapter: bool) -> str:
    """What has to be known of weights that were kept in 4 bits."""
    if not settings or not settings["quantise"]:
        return ""
    what = (
        "the figures are of the adapter over weights that are rounded so"
        if adapter
        else "in these weights they are rounded so"
    )
    return f" The projections of the language model were kept in 4 bits (NF4, doubly quantised): {what}."


def _data(run: Run, checkpoint: Checkpoint, manifest: Mapping[str, Any]) -> Iterator[str]:
    """What a checkpoint was trained on, and not what the run went on with: families, tasks, seeds."""
    if not checkpoint.step:
        yield "- none in this run: these are the weights that it began with"
        return
    for part in manifest["state"].get("taught", ()):  # by a warm start
        yield _line(part["source"], part["episodes"], part["tasks"], part["families"], part["seeds"])
    rows = [row for row in run.episodes(TRAIN, "trained") if row.step is not None and row.step <= checkpoint.step]
    if rows:
        families, seeds = sorted({row.family for row in rows}), [row.seed for row in rows]
        yield _line(
            "the policy itself", len(rows), len({row.task_id for row in rows}), families, [min(seeds), max(seeds)]
        )
    lost = Counter(row.cause or "unknown" for row in run.episodes(TRAIN, "errored"))
    if lost:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(lost.items()))
        yield f"- {lost.total()} further episodes of the run had no score (by cause: {causes}) and were not trained on"


def _line(source: str, episodes: int, tasks: int, families: Sequence[str], seeds: Sequence[int]) -> str:
    if not tasks:
        return f"- {episodes} conversations of {source}; on what tasks is not known here"
    return (
        f"- {episodes} episodes of {source} on {tasks} tasks of {', '.join(families)}; seeds {seeds[0]} to {seeds[1]}, all of the "
        "training split"
    )


def _before(model: str) -> Iterator[str]:
    """What the model was trained on that the run began with, where that is a checkpoint of another run, and so on backwards."""
    from deskhand.trainer.checkpoint import verify

    path = Path(model).expanduser()
    folder = path.parent.parent
    if path.parent.name == "checkpoints" and (folder / "run.sqlite").exists():
        with Run.open(folder, read_only=True) as run:
            try:
                manifest = verify(path)
            except ConfigError:
                yield f"- before this run, in {folder.name}: not known, as the checkpoint {path.name} is not there any more"
                return
            found = run.checkpoint(manifest["steps"])
            if found is not None:
                for line in _data(run, found, manifest):
                    yield f"{line} (before this run, in {folder.name})"
            yield from _before(run.metadata.get("config", {}).get("model", ""))
    elif path.is_dir():
        known = (path / "README.md").is_file()
        yield f"- before this run: {f'what the card of `{path.name}` says' if known else f'not known, `{path.name}` has no card'}"


def _figures(run: Run, checkpoint: Checkpoint) -> Iterator[str]:
    """Before and after, with Wilson intervals; on the same tasks, each as often, where both were evaluated."""
    names = "version-0", f"version-{checkpoint.version}"
    played = [{(row.task_id, row.member) for row in run.episodes(name, "scored")} for name in names]
    both = played[0] & played[1] or None
    before, after = (build_eval_report(run, name, both) for name in names)
    if not after.success.total:
        yield f"Version {checkpoint.version} has not been evaluated; `deskhand eval {run.folder} --step {checkpoint.step}` does it."
        return
    held = [row for row in run.episodes(after.name, "scored") if both is None or (row.task_id, row.member) in both]
    yield "| family | before | after |\n|---|---|---|"
    rows: list[tuple[str, Proportion, Proportion]] = [("all families", before.success, after.success)]
    rows += [(name, before.by_family.get(name, Proportion(0, 0)), rate) for name, rate in after.by_family.items()]
    for name, first, second in rows:
        yield f"| {name} | {_cell(first)} | {_cell(second)} |"
    yield f"\nTasks of the held-out split, {_seeds(held)}; 95 % Wilson intervals. {_unscored(build_eval_report(run, names[1]))}"


def _cell(rate: Proportion) -> str:
    return str(rate).strip() if rate.total else "not evaluated"


def _seeds(rows: list[EpisodeRow]) -> str:
    return f"seeds {min(row.seed for row in rows)} to {max(row.seed for row in rows)}" if rows else "none"


def _unscored(report: EvalReport) -> str:
    lost = sum(report.unscored.values())
    return f"{lost} had no score and do not count." if lost else "None was without a score."


def _changed(config: Config) -> dict[str, Any]:
    """The settings that are not the defaults, nested as in a config file."""

    def difference(given: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in given.items():
            other = default.get(key)
            if isinstance(value, dict) and isinstance(other, dict):
                value = difference(value, other)
                if value:
                    found[key] = value
            elif value != other:
                found[key] = value
        return found

    return difference(config.model_dump(mode="json"), Config().model_dump(mode="json"))
