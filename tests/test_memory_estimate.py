"""`deskhand estimate`: the shipped configs fit the memory of their names; others are rejected with numbers."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from test_cli import ROOT, called

from deskhand.config.load import load_config
from deskhand.errors import ConfigError
from deskhand.models.architectures import QWEN25_VL_3B, values_of
from deskhand.recipes import plan
from deskhand.trainer import throughput_estimate
from deskhand.trainer.memory_estimate import GIB

CONFIGS = {
    "qwen25vl_3b_lora_24gb": 24,
    "qwen3vl_4b_lora_80gb": 80,
    "qwen3vl_4b_full_140gb": 140,
    "qwen35_4b_lora_40gb": 40,
}
DECIMAL = 1e9 / 2**30
"""The makers' gigabytes in GiB."""


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_fits_into_the_memory_of_its_name_and_not_into_half(name: str) -> None:
    config = load_config(ROOT / "configs" / f"{name}.yaml")
    for tasks in ({}, {"screen": (1920, 1080), "turns": 15}):
        made = plan.plan(config, memory_gib=CONFIGS[name] * DECIMAL, **tasks)
        assert made.memory.fits, "\n".join(made.lines())
        assert made.work.wanted_tokens == 0, "a benchmark's screens fit the context too"
    half = plan.plan(config, memory_gib=CONFIGS[name] * DECIMAL / 2)
    assert not half.memory.fits


@pytest.mark.parametrize("name", CONFIGS)
def test_a_smoke_profile_is_small(name: str) -> None:
    config = load_config(ROOT / "configs" / f"{name}.yaml", profile="smoke")
    assert (config.loop.total_steps, config.loop.groups_per_step * config.loop.group_size) == (2, 8)
    assert 0 < config.evaluation.num_episodes <= 12


def test_every_part_makes_the_sum_larger_when_it_grows(tmp_path: Path) -> None:
    config, shallow = ROOT / "configs" / "qwen3vl_4b_lora_80gb.yaml", described(tmp_path / "model", SHALLOW)
    least = plan.plan(load_config(config, [shallow])).memory.total()
    for change in (
        "policy.max_tokens_per_mb=40000",
        "policy.lora.rank=512",
        "policy.gradient_checkpointing=false",
        "loop.group_size=32",
        "engine.max_num_seqs=64",
        "engine.prefix_cache_tokens=200000",
        "engine.share_weights=false",
        "dtype=float32",
        "agent.max_new_tokens=600",
    ):
        more = [shallow, change, *(["loop.max_concurrent_episodes=64"] if change.startswith("engine") else [])]
        assert plan.plan(load_config(config, more)).memory.total() > least, change


def test_a_run_that_does_not_fit_is_rejected_with_numbers_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    command = ["train", str(ROOT / "configs" / "tiny_cpu.yaml"), str(folder), "--set", "device_memory_gib=0.1"]
    code, _, err = called(monkeypatch, capsys, *command)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"this run needs \d\.\d GiB, but cpu has 0\.1 GiB \(largest: ", err)
    assert "policy.max_tokens_per_mb" in err
    assert not folder.exists()


def test_a_warm_start_that_does_not_fit_is_rejected_before_the_oracle_plays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, config = tmp_path / "run", ROOT / "configs" / "tiny_cpu.yaml"
    settings = ("device_memory_gib=0.02", "suite.families=[dialog_choice]", "sft.num_demonstrations=2")
    options = [word for setting in settings for word in ("--set", setting)]
    code, _, err = called(monkeypatch, capsys, "sft", str(config), str(folder), *options)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"this run needs \d\.\d GiB, but cpu has 0\.0 GiB \(largest: .*sft\.episodes_per_batch", err)
    assert not folder.exists()


def test_a_warm_start_needs_no_engine_no_critic_no_reference_and_no_teacher() -> None:
    tiny = ROOT / "configs" / "tiny_cpu.yaml"
    settings = ["trainer.algorithm=ppo", "trainer.critic.backbone=separate", "trainer.kl_loss_coef=0.1"]
    config = load_config(tiny, [*settings, "trainer.distillation.teacher=tiny"])
    whole, warm = plan.plan(config).memory, plan.estimate_sft_memory(config)
    assert {"critic", "reference", "teacher", "KV cache"} <= {term.name for term in whole.terms}
    assert not {"critic", "reference", "teacher", "KV cache"} & {term.name for term in warm.terms}
    copies = {term.name: term.bytes for term in whole.terms}
    assert copies["teacher"] == copies["weights"]
    assert plan.estimate_sft_memory(load_config(tiny, ["sft.episodes_per_batch=64"])).total() > warm.total()
    assert plan.estimate_sft_memory(load_config(ROOT / "configs" / "qwen25vl_3b_lora_24gb.yaml")).fits


def test_the_command_prints_the_sum_and_exits_with_2_when_it_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(ROOT / "configs" / "qwen25vl_3b_lora_24gb.yaml")
    code, out, err = called(
        monkeypatch, capsys, "estimate", config, "--gpu", "4090", "--screen-size", "1280x720", "--turns", "15"
    )
    assert code == 0, err
    assert "1280x720: " in out
    assert re.search(r"^weights +7\.\d\d GiB +3\.755e9 x 2 B", out, re.MULTILINE), out
    for name in ("sum, device", "sum, host", "fits", "training: ", "sampling: ", "assumed: "):
        assert name in out
    assert "agent.on_overflow" not in out
    code, out, _ = called(monkeypatch, capsys, "estimate", config, "--memory", "8")
    assert code == 2
    assert "DOES NOT FIT" in out
    wrong_options = (
        "--gpu none,--screen-size big,--screen-size 9999999x8,--turns 0,--turns -3,--reply-tokens 0,--memory 0,"
        "--memory nan,--set policy.batch_token=1,--set device_memory_gib=-1"
    )
    for wrong in wrong_options.split(","):
        code, _, err = called(monkeypatch, capsys, "estimate", config, *wrong.split())
        assert (code, err.count("\n")) == (2, 1), (wrong, err)


def test_a_server_on_the_device_counts_with_its_share_and_must_fit_the_model() -> None:
    path = ROOT / "configs" / "qwen3vl_4b_lora_80gb.yaml"
    settings = ["engine.backend=vllm", "engine.share_weights=false", "engine.gpu_memory_utilization=0.4"]
    made = plan.plan(load_config(path, settings))
    server = next(term for term in made.memory.terms if term.name == "server")
    assert server.bytes == pytest.approx(0.4 * 74.5 * 2**30)
    assert not any(term.name == "KV cache" for term in made.memory.terms)
    assert made.memory.fits
    assert not plan.plan(load_config(path, [*settings, "engine.gpu_memory_utilization=0.8"])).memory.fits
    with pytest.raises(
        ConfigError,
        match=r"engine.gpu_memory_utilization: 0.1 gives the server 7\.\d GiB, but weights .* need 9\.\d GiB",
    ):
        plan.plan(load_config(path, [*settings, "engine.gpu_memory_utilization=0.1"]))
    elsewhere = plan.plan(load_config(path, [*settings, "engine.base_url=http://10.0.0.1:8000"]))
    assert any(line.startswith("not included: the server") for line in elsewhere.lines())


SERVED = ["engine.share_weights=false", "engine.backend=vllm"]
SENT = {
    "a server that is started": ("qwen3vl_4b_lora_80gb", [], "adapters"),
    "the tower too": ("qwen3vl_4b_lora_80gb", ["policy.lora.vision=true"], "adapters"),
    "4 bits": ("qwen3vl_4b_lora_80gb", ["policy.lora.load_in_4bit=true"], "whole weights"),
    "the tower of another family": ("qwen25vl_3b_lora_24gb", ["policy.lora.vision=true"], "whole weights"),
    "a server at an address": ("qwen3vl_4b_lora_80gb", ["engine.base_url=http://10.0.0.1:8000"], "whole weights"),
    "all weights": ("qwen3vl_4b_full_140gb", [], "whole weights"),
}


@pytest.mark.parametrize("kind", SENT)
def test_a_server_gets_only_adapters_if_it_supports_them(kind: str) -> None:
    name, settings, expected = SENT[kind]
    config = load_config(ROOT / "configs" / f"{name}.yaml", [*SERVED, *settings])
    family = values_of(config.model)["model_type"]
    assert plan.weight_sync_mode(config.engine, config.policy.lora, family) == expected


def test_weight_transfer_is_counted_and_a_copy_for_a_server_is_in_host_memory(tmp_path: Path) -> None:
    path, shallow = ROOT / "configs" / "qwen25vl_3b_lora_24gb.yaml", described(tmp_path / "model", SHALLOW)
    sizes = {}
    for what, settings, place in (
        ("none", [], None),
        ("adapters", SERVED[:1], "device"),
        ("whole weights", [*SERVED, "policy.lora.load_in_4bit=true"], "host"),
    ):
        made = plan.plan(load_config(path, [shallow, *settings, "device_memory_gib=200"]))
        line = list(made.lines())[-1]
        assert line.startswith(f"weight sync per step: {what}, ")
        assert ("written to a file and read" in line) == (place == "host")
        on_their_way = {term.place: term.bytes for term in made.memory.terms if term.name == "weight transfer"}
        assert on_their_way == ({place: made.memory.sent} if place else {})
        sizes[what] = made.memory.sent
    assert sizes["none"] == 0 < 20 * sizes["adapters"] < sizes["whole weights"]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_smoke_profile_has_no_images(name: str) -> None:
    made = plan.plan(load_config(ROOT / "configs" / f"{name}.yaml", profile="smoke-text"))
    assert (made.work.image_tokens, made.work.step_images) == (0, 0)
    assert made.memory.fits, "\n".join(made.lines())


@pytest.mark.parametrize("name", [*CONFIGS, "tiny_cpu"])
def test_a_config_and_its_profiles_are_for_local_desktops(name: str) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    for profile in (None, "smoke", "smoke-text", "full"):
        config = load_config(path, profile=profile)
        assert (config.desktop.backend, config.suite.name) == ("local", "basics")
        assert config.suite.families, "the lines that change for other desktops: tests/test_suite_config.py"


def test_sequences_are_those_of_the_history() -> None:
    chunked = ("agent.history=chunked", "agent.history_max_turns=6", "agent.history_keep_turns=3")
    config = load_config(None, [*chunked, "engine.max_model_len=100000"])
    for turns, shown, rows in ((4, 4, 1), (6, 6, 1), (7, 6, 2), (14, 6, 3)):
        work = plan.workload(config, values_of("tiny"), (320, 256), turns)
        assert (work.turns_in_row, work.step_rows) == (shown, rows * work.step_episodes)
    sliding = load_config(None, ["agent.history=sliding", "agent.sliding_turns=3"])
    assert plan.workload(sliding, values_of("tiny"), (320, 256), 9).step_rows == 7 * 32


def described(folder: Path, change: dict[str, object] | None = None, text: str | None = None) -> str:
    """A folder with the config.json of Qwen2.5-VL-3B, changed."""
    values = copy.deepcopy(QWEN25_VL_3B)
    for path, value in (change or {}).items():
        place = values
        *sections, key = path.split(".")
        for section in sections:
            place = place[section]
        place[key] = value
        if value is None:
            del place[key]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values) if text is None else text)
    (folder / "preprocessor_config.json").write_text('{"min_pixels": 3136, "max_pixels": 1000000}')
    return f"model={folder}"


SHALLOW: dict[str, object] = {"text_config.num_hidden_layers": 4}
BROKEN: dict[str, dict[str, object]] = {
    "no vision": {"vision_config": None},
    "vision is a word": {"vision_config": "large"},
    "no patches": {"vision_config.patch_size": 0},
    "no layers": {"text_config.num_hidden_layers": 0},
    "endless layers": {"text_config.num_hidden_layers": 10**9},
    "a width in words": {"text_config.hidden_size": "2048"},
    "heads that do not divide": {"text_config.num_attention_heads": 7},
    "another kind": {"model_type": "llama"},
    "no kind": {"model_type": None},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_model_that_cannot_be_is_one_error(tmp_path: Path, kind: str) -> None:
    source = described(tmp_path / "model", BROKEN[kind])
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))) as caught:
        plan.plan(load_config(None, [source]))
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for source, words in (
        (f"model={tmp_path / 'absent'}", "no such folder"),
        (f"model={tmp_path / 'empty'}", "config.json: missing"),
        (described(tmp_path / "torn", text='{"model_type": "qwen'), "config.json: unreadable"),
        (described(tmp_path / "list", text="[]"), "not a JSON object"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan.plan(load_config(None, [source]))


def test_a_folder_of_adapters_is_planned_as_its_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-VL-3B-Instruct"}')
    assert values_of(str(tmp_path)) == QWEN25_VL_3B


@pytest.mark.parametrize(
    "settings",
    [
        ["policy.max_tokens_per_mb=1"],
        ["policy.max_tokens_per_mb=1000000000000"],
        ["policy.max_vision_patches_per_mb=1"],
        ["policy.lora.rank=1000000000"],
        ["loop.group_size=1000000000"],
        ["engine.max_num_seqs=1000000000"],
        ["engine.max_model_len=1"],
        ["engine.prefix_cache_tokens=0", "engine.image_cache_tokens=1", "engine.max_num_batched_tokens=1"],
        ["loop.max_concurrent_episodes=1000000000"],
        ["trainer.num_minibatches=1000000000", "trainer.decoupled_loss=false"],
    ],
)
def test_extreme_settings_can_be_estimated(tmp_path: Path, settings: list[str]) -> None:
    shallow = described(tmp_path / "model", SHALLOW)
    made = plan.plan(load_config(ROOT / "configs" / "qwen25vl_3b_lora_24gb.yaml", [shallow, *settings]), gpu="4090")
    assert 2 * GIB < made.memory.least() <= made.memory.total()
    assert all(term.bytes >= 0 for term in made.memory.terms)
    assert list(made.lines())


def test_sizes_that_no_tensor_can_have_are_rejected_in_one_line() -> None:
    settings = ["agent.max_new_tokens=1000000000000000", "engine.max_model_len=1000000000000000"]
    with pytest.raises(ConfigError, match="cannot build this model") as caught:
        plan.plan(load_config(ROOT / "configs" / "qwen25vl_3b_lora_24gb.yaml", settings))
    assert "\n" not in str(caught.value)


def test_only_the_engine_that_launches_kernels_one_by_one_is_slowed_by_launching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rates(*settings: str) -> list[float]:
        config = load_config(ROOT / "configs" / "tiny_cpu.yaml", settings)
        found = []
        for launch_s in (250e-6, 25e-3):
            monkeypatch.setattr(throughput_estimate, "LAUNCH_S", launch_s)
            speed = plan.plan(config, gpu="H100").speed
            assert speed is not None
            found.append(speed.sample_tokens_per_s)
        return found

    slow, slower = rates()
    assert slow > 10 * slower
    fast, also_fast = rates("engine.backend=vllm")
    assert fast == also_fast
    assert fast >= slow


def test_sampling_reads_the_rows_and_not_the_reserved_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput_estimate, "LAUNCH_S", 0.0)
    settings = ["device=cuda:0", "loop.max_concurrent_episodes=16"]
    few, many = (
        plan.plan(
            load_config(ROOT / "configs" / "tiny_cpu.yaml", [*settings, f"engine.max_num_seqs={slots}"]), gpu="H100"
        )
        for slots in (16, 64)
    )
    assert few.memory.total() < many.memory.total()
    assert few.speed == many.speed


def test_a_processor_is_measured_with_the_threads_of_the_trainer() -> None:
    speeds = [plan.device_of("cpu", threads=count).single for count in (1, 8)]
    assert speeds[1] > 4 * speeds[0]


def test_the_estimate_of_a_processor_counts_the_program() -> None:
    made = plan.plan(load_config(ROOT / "configs" / "tiny_cpu.yaml")).memory
    assert {term.place for term in made.terms} == {"device"}
    assert 0.8 * GIB < made.total() < 1.5 * GIB, "\n".join(made.lines())
    for peak_mib in (1355, 1348):
        estimated = made.total() / 2**20
        print(f"docs/evidence/learning_one_update.md: {estimated:.0f} MiB estimated, {peak_mib} MiB measured")
        assert made.total() / 2**20 == pytest.approx(peak_mib, rel=0.25)
