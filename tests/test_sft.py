"""`deskhand sft` and `deskhand export` end to end on real desktops: demonstrations, a warm start that is killed, a
checkpoint that loads back."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import recorded_folder
import torch
import training_fixture
from command_line import called

from deskhand.config.load import Config
from deskhand.config.trainer import LoraConfig, PolicyConfig
from deskhand.models.load import load
from deskhand.models.tiny.architecture import PREPROCESSOR
from deskhand.recipes import grounding
from deskhand.recipes.export_model import export_model
from deskhand.recipes.grounding import read_screens
from deskhand.recipes.sft import (
    DEMONSTRATIONS,
    FIRST_SEED,
    batches,
    demonstrations_from_runs,
    finetune,
    load_demonstrations,
    split,
)
from deskhand.recipes.step_report import ProgressListener
from deskhand.rollout.groups import EpisodeRequest
from deskhand.rollout.run_writer import new_row
from deskhand.store.run import TRAIN, Checkpoint, Run
from deskhand.tasks.suites import family_registry
from deskhand.tasks.task import seed_for
from deskhand.trainer import supervised
from deskhand.trainer.checkpoint import CheckpointManager
from deskhand.trainer.policy import Policy
from deskhand.trainer.trainer import Trainer

SETTINGS = {
    "suite.families": "[dialog_choice]",
    "loop.max_concurrent_episodes": "2",
    "desktop.prewarm": "0",
    "sft.num_demonstrations": "4",
    "sft.num_screens": "3",
    "sft.coordinate_grid": "20",
    "sft.total_steps": "6",
    "sft.warmup_steps": "1",
    "sft.episodes_per_batch": "2",
    "sft.log_every": "2",
    "sft.save_every": "2",
    "sft.val_fraction": "0.2",
    "sft.learning_rate": "3e-3",
    "trainer.torch_threads": "1",
}


def options(**more: str) -> list[str]:
    return [word for key, value in {**SETTINGS, **more}.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that takes the bundled policy's screens."""
    folder = training_fixture.checkpoint(tmp_path_factory.mktemp("checkpoint"))
    images = {**PREPROCESSOR, "patch_size": 8, "size": {"shortest_edge": 16 * 16, "longest_edge": 96 * 96}}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    return folder


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """A run in which the oracle played and a model with adapters was warmed up; interrupted after four updates and gone
    on with."""

    folder = tmp_path_factory.mktemp("warm") / "run"
    (folder.parent / "empty.yaml").write_text(f"model: {checkpoint}\npolicy: {{lora: {{rank: 4}}}}\n")
    command = ["sft", str(folder.parent / "empty.yaml"), str(folder), *options()]
    with pytest.MonkeyPatch.context() as patch:
        real = supervised.PolicySftLearner.update
        count = 0

        def interrupted(self, factor):
            nonlocal count
            count += 1
            if count == 6:
                raise KeyboardInterrupt
            real(self, factor)

        patch.setattr(supervised.PolicySftLearner, "update", interrupted)
        assert run_command(patch, command) == 130
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grounding, "collect_screens", None)  # those of before are used
        assert run_command(patch, ["sft", "--resume", str(folder)]) == 0
    return folder


def run_command(patch: pytest.MonkeyPatch, command: list[str]) -> int:
    class Silent:
        @staticmethod
        def readouterr():
            return "", ""

    return called(patch, Silent, *command)[0]  # type: ignore[arg-type]


def test_screens_are_mixed_in_and_collected_once(warm: Path) -> None:
    with Run.open(warm, read_only=True) as run:
        last = run.checkpoint()
        assert last is not None
        sources = json.loads((Path(last.path) / "manifest.json").read_text())["state"]["screens"]
    screens = read_screens(warm / "screens.jsonl")
    assert sources == {"count": 3, "families": ["dialog_choice"], "first_seed": grounding.FIRST_SEED}
    assert len(screens) == 3
    assert len({screen.sha256 for screen in screens}) == 3, "each arrangement looks different"
    assert all(screen.questions for screen in screens)


def test_families_without_questions_have_no_screens(tmp_path: Path, cli_error) -> None:
    command = ["sft", "tiny_cpu", str(tmp_path / "run"), *options(**{"suite.families": "[archive_size]"})]
    assert "sft.num_screens: no training family has questions about its screens" in cli_error(*command)


def test_demonstrations_use_their_own_training_seeds(warm: Path) -> None:
    with Run.open(warm, read_only=True) as run:
        rows = run.episodes(DEMONSTRATIONS, "scored")
        assert [row.value for row in rows] == [1.0] * 4
        assert {row.split for row in rows} == {"train"}
        assert all(FIRST_SEED <= row.seed < FIRST_SEED + 1000 for row in rows)
        found = load_demonstrations(run, DEMONSTRATIONS)
        assert len(found) == 4
        assert all(run.frames.path(span.sha256).exists() for demo in found for row in demo.rows for span in row.spans)
        taught, held = split(found, 0.5)
        assert sorted(each.episode_id for each in taught + held) == sorted(each.episode_id for each in found)


def test_an_interrupted_warm_start_ends_with_the_same_weights(warm: Path, checkpoint: Path, tmp_path) -> None:
    other = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        config = warm.parent / "empty.yaml"
        assert run_command(patch, ["sft", str(config), str(other), "--episodes", str(warm), *options()]) == 0
    first, second = (
        CheckpointManager(folder / "checkpoints").path(6) / "model.safetensors" for folder in (warm, other)
    )
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != (CheckpointManager(warm / "checkpoints").path(0) / "model.safetensors").read_bytes()
    with Run.open(other, read_only=True) as run:
        losses = [entry["train/loss"] for entry in run.metrics()]
        assert [entry["step"] for entry in run.metrics()] == [2, 4, 6]
        assert losses[-1] < losses[0]


async def test_rejection_sampling_imitates_the_best_episodes_of_a_run_and_training_continues(tmp_path) -> None:
    """RL, fine-tuning on what reached the score, RL from there."""

    def half_task(number: int):
        task = training_fixture.fake_desktop.square_task(seed_for("train", number))

        async def check(desktop):
            done = await task.check(desktop)
            return done if done.value else dataclasses.replace(done, value=0.5 * float(bool(desktop.clicked)))

        return dataclasses.replace(task, check=check)

    async def phase(name: str) -> None:
        loop = training_fixture.small(total_steps=1)
        async with training_fixture.assembled(tmp_path / name, loop, make_task=half_task) as parts:
            await parts.loop.run()

    await phase("first")
    model = tmp_path / "first-checkpoint"
    values = {"total_steps": 2, "warmup_steps": 1, "episodes_per_batch": 2, "val_fraction": 0.0}
    config = Config.model_validate({"model": str(model), "sft": values})
    with Run.open(tmp_path / "first", read_only=True) as run:
        scores = {row.id: row.value for row in run.episodes(TRAIN) if row.value is not None}
    _, *others = sorted(set(scores.values()))
    assert others, "a trained group has different scores"
    with Run.create(tmp_path / "tuned", {}) as run:
        for least in others:
            arguments = ([tmp_path / "first"], str(model), "error", run.frames, ProgressListener(), least)
            found = demonstrations_from_runs(*arguments)
            assert {demo.episode_id for demo in found} == {name for name, score in scores.items() if score >= least}
        tuned = finetune(config, run, found, ProgressListener())
    shutil.copytree(tuned, tmp_path / "second-checkpoint")
    await phase("second")
    before, after = (
        load(str(CheckpointManager(tmp_path / name / "checkpoints").path(0))).model.state_dict()
        for name in ("first", "second")
    )
    start = load(str(tuned)).model.state_dict()
    assert all(torch.equal(value, start[name]) for name, value in after.items())
    assert not all(torch.equal(value, before[name]) for name, value in after.items())


def test_other_settings_for_an_existing_warm_start_are_refused(warm: Path, cli, cli_error) -> None:
    """They would be passed over without a word."""
    command = ["sft", str(warm.parent / "empty.yaml"), str(warm)]
    err = cli_error(*command, *options(**{"sft.total_steps": "9"}))
    assert "sft.total_steps was 6, now 9" in err
    err = cli_error(*command, *options(), "--episodes", str(warm))
    assert "contains a warm start on the oracle; use a new directory" in err
    out = cli(*command, *options())
    assert "step-000006" in out


def test_the_episodes_of_a_run_are_written_as_plain_files(warm: Path, tmp_path, cli) -> None:
    out = tmp_path / "episodes"
    said = cli("export", str(warm), "--out", str(out), "--episodes")
    assert said == f"4 episodes in {out}\n"
    lines = (out / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["phase"] for line in lines] == [DEMONSTRATIONS] * 4


def logits_of(source: Path) -> torch.Tensor:
    loaded = load(str(source))
    with torch.inference_mode():
        return loaded.model(input_ids=torch.arange(5, 40).unsqueeze(0)).logits


def run_with_checkpoint(folder: Path, source: Path, policy: Policy) -> Run:
    run = Run.create(folder, {"config": Config(model=str(source)).model_dump(mode="json")})
    path = CheckpointManager(folder / "checkpoints").save(Trainer(policy), source)
    run.commit(counts={}, checkpoint=Checkpoint(0, 0, path, 0.0))
    return run


def test_adapters_of_the_vision_tower_are_exported_with_the_others(tmp_path) -> None:
    """What peft makes of the adapters alone computes what the merged weights do, on a picture, too."""
    source = training_fixture.checkpoint(tmp_path / "base")
    policy = Policy(load(str(source)).model, PolicyConfig(lora=LoraConfig(rank=2, vision=True)))
    with torch.no_grad():
        for parameter in policy.parameters().values():
            parameter.normal_(0, 0.5)
    with run_with_checkpoint(tmp_path / "run", source, policy) as run:
        path = CheckpointManager(run.folder / "checkpoints").path(0)
        out = export_model(run, tmp_path / "exported", adapter=True)
    expected, found = load(str(path)).model.state_dict(), load(str(out)).model.state_dict()
    tower = [name for name in expected if "visual.blocks" in name and name.endswith("qkv.weight")]
    assert any(not torch.equal(expected[name], load(str(source)).model.state_dict()[name]) for name in tower)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-5)


def test_the_card_describes_quantization(tmp_path) -> None:
    pytest.importorskip("bitsandbytes")
    source = training_fixture.checkpoint(tmp_path / "base")
    policy = Policy(load(str(source)).model, PolicyConfig(lora=LoraConfig(rank=2, load_in_4bit=True)))
    with run_with_checkpoint(tmp_path / "run", source, policy) as run:
        merged, adapter = (export_model(run, tmp_path / f"{kind}", adapter=kind) for kind in (False, True))
    before, rounded = load(str(source)).model.state_dict(), load(str(merged)).model.state_dict()
    changed = {name for name, value in before.items() if not torch.equal(value, rounded[name])}
    assert changed
    assert all("language_model.layers" in name for name in changed)
    assert "these weights are the dequantized ones" in (merged / "README.md").read_text()
    assert "the results are of the adapter on the quantized weights" in (adapter / "README.md").read_text()


@pytest.mark.parametrize("adapter", [False, True])
def test_an_export_loads_back_with_equal_logits(warm: Path, tmp_path, adapter: bool, cli) -> None:
    out = tmp_path / "exported"
    said = cli("export", str(warm), "--out", str(out), *(["--adapter"] if adapter else []))
    assert said.strip() == str(out)
    expected = logits_of(CheckpointManager(warm / "checkpoints").path(6))
    torch.testing.assert_close(logits_of(out), expected, atol=1e-6, rtol=0)
    assert not torch.allclose(expected, logits_of(CheckpointManager(warm / "checkpoints").path(0)), atol=1e-3)
    assert (out / "adapter_model.safetensors").exists() == adapter
    assert (out / "model.safetensors").exists() != adapter
    assert not (out / "trainer.safetensors").exists()


def test_the_card_describes_the_run(warm: Path, tmp_path, cli) -> None:
    cli("export", str(warm), "--out", str(tmp_path / "exported"))
    card = (tmp_path / "exported" / "README.md").read_text()
    with Run.open(warm, read_only=True) as run:
        taught, _ = split(load_demonstrations(run, DEMONSTRATIONS), 0.2)
    seeds, count = [demo.episode.seed for demo in taught if demo.episode is not None], len(taught)
    assert (
        f"{count} episodes of the tasks' oracle on {count} tasks of dialog_choice; seeds {min(seeds)} to {max(seeds)}"
        in card
    )
    assert "after 6 updates in 6 steps" in card
    assert "Version 6 has not been evaluated" in card
    assert "rank: 4" in card
    assert card.startswith("---\nlibrary_name: transformers\n")


def test_the_card_covers_its_checkpoint_and_earlier_runs(warm: Path, checkpoint: Path, tmp_path) -> None:
    """Episodes of later steps are not its data; those of the warm start that the run began from are."""
    source = CheckpointManager(warm / "checkpoints").path(6)
    trainer = Trainer(Policy(load(str(source)).model))
    with Run.create(tmp_path / "run", {"config": Config(model=str(source)).model_dump(mode="json")}) as run:
        for step in (1, 2):
            trainer.steps = trainer.updates = step
            path = CheckpointManager(run.folder / "checkpoints").save(trainer, source)
            states = {}
            for number in range(3):
                ticket = EpisodeRequest(
                    f"{step}-{number}",
                    family_registry.make_task("dialog_choice", seed_for("train", 10 * step + number)),
                )
                row = new_row(ticket, TRAIN)
                run.start_episode(row)
                run.finish_episode(dataclasses.replace(row, state="queued", value=1.0), {}, b"")
                states[ticket.episode_id] = ("trained", step)
            run.commit(counts={}, states=states, checkpoint=Checkpoint(step, step, path, 0.0))
        for version, members in ((0, 3), (2, 1)):  # the one before was played more often
            for member in range(members):
                row = new_row(
                    dataclasses.replace(ticket, episode_id=f"v{version}-{member}", member=member), f"version-{version}"
                )
                run.start_episode(row)
                run.finish_episode(dataclasses.replace(row, state="scored", value=float(version + member > 0)), {}, b"")
        lost = new_row(dataclasses.replace(ticket, episode_id="lost"), TRAIN)
        run.start_episode(lost)
        run.finish_episode(dataclasses.replace(lost, state="errored", cause="cancelled"), {}, b"")
        cards = [(export_model(run, tmp_path / f"{step}", step=step) / "README.md").read_text() for step in (1, 2)]
    assert "- 3 episodes of the policy itself on 3 tasks" in cards[0]
    assert "- 6 episodes of the policy itself on 6 tasks" in cards[1]
    assert "Version 1 has not been evaluated" in cards[0]
    assert "| all families | 0.0% [0.0%, 79.3%] of 1 | 100.0% [20.7%, 100.0%] of 1 |" in cards[1], "of the same tries"
    for card in cards:
        assert "1 more episodes errored (by cause: cancelled 1) and were not trained on" in card
        assert "episodes of the tasks' oracle on" in card
        assert f"(before this run, in {warm.name})" in card
        assert f"before this run: unknown, `{checkpoint.name}` has no card" in card


def test_recorded_conversations_are_trained_and_named_in_the_card(checkpoint: Path, tmp_path, cli) -> None:
    recorded, folder = tmp_path / "recorded", tmp_path / "run"
    for session in ("one", "two"):
        recorded_folder.talk(recorded, session)
    recorded_folder.talk(recorded, "poor", reward=0.0)
    (tmp_path / "empty.yaml").write_text(f"model: {checkpoint}\n")
    command = ["sft", str(tmp_path / "empty.yaml"), str(folder), "--episodes", str(recorded)]
    out = cli(*command, *options(**{"sft.val_fraction": "0", "sft.total_steps": "2"}))
    assert "recorded: 2 conversations of 3 sessions, 1 of them with a low reward" in out
    assert "2 training episodes, 0 validation episodes, 3 screens" in out
    cli("export", str(folder), "--out", str(tmp_path / "exported"))
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "- 3 screenshots with questions about their elements, of start states of dialog_choice" in card
    assert "- 2 conversations from recordings in recorded; their tasks are unknown" in card


WRONG = {
    "a folder that is not empty": ("export", ["{warm}", "--out", "{warm}"], "is not empty; export to a new folder"),
    "a step that is not there": ("export", ["{warm}", "--out", "{new}", "--step", "3"], "no checkpoint of step 3"),
    "a step of the episodes": (
        "export",
        ["{warm}", "--out", "{new}", "--episodes", "--step", "3"],
        "remove --adapter and --step",
    ),
    "no config": ("sft", ["{config}"], "deskhand sft tiny_cpu"),
    "episodes of nothing": ("sft", ["{config}", "{new}", "--episodes", "{new}x"], "not a run directory"),
    "resuming a warm start as training": ("train", ["--resume", "{warm}"], "deskhand sft --resume"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_one_line_errors(name: str, warm: Path, tmp_path, cli_error) -> None:
    command, arguments, expected = WRONG[name]
    names = {"{warm}": str(warm), "{new}": str(tmp_path / "new"), "{config}": str(warm.parent / "empty.yaml")}
    for key, value in names.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    err = cli_error(command, *arguments)
    assert expected in err
    assert not (tmp_path / "new").exists()


def test_batches_cover_all_demonstrations_before_any_repeats(warm: Path) -> None:
    with Run.open(warm, read_only=True) as run:
        found = [demo.rows for demo in load_demonstrations(run, DEMONSTRATIONS)]
    pictures = dict.fromkeys(span.sha256 for rows in found for row in rows for span in row.spans)
    source = batches(found, pictures, 2, 7, 0)  # type: ignore[arg-type]
    first = [next(source)[0] for _ in range(4)]
    again = batches(found, pictures, 2, 7, 3)  # type: ignore[arg-type]
    assert next(again)[0] == first[3]
    seen = [row for rows in first[:2] for row in rows]
    assert sorted(map(hash, seen)) == sorted(hash(row) for rows in found for row in rows)
