"""Settings: file < environment < command line; errors are one line with origin, key and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from deskhand.config import load
from deskhand.config.load import Config
from deskhand.errors import ConfigError

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def message_of(
    path: Path | None = None, overrides: tuple[str, ...] = (), environment: dict[str, str] | None = None
) -> str:
    with pytest.raises(ConfigError) as caught:
        load.load_config(path, overrides, environment)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_command_line_overrides_environment_overrides_file(tmp_path: Path) -> None:
    path = written(tmp_path, "trainer: {learning_rate: 1e-3, ppo_epochs: 2}\nloop: {total_steps: 7}\nseed: 1\n")
    environment = {"DESKHAND_TRAINER__LEARNING_RATE": "2e-3", "DESKHAND_SEED": "2", "PATH": "/bin"}
    made = load.load_config(path, ["seed=3"], environment)
    assert (made.trainer.learning_rate, made.trainer.ppo_epochs, made.loop.total_steps, made.seed) == (2e-3, 2, 7, 3)


def test_no_settings_are_the_defaults() -> None:
    assert load.load_config() == Config()


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load.load_config(written(tmp_path, "# nothing\n")) == Config()


def test_lists_are_written_alike_in_every_source(tmp_path: Path) -> None:
    path = written(tmp_path, "suite: {families: [a, b]}\n")
    assert load.load_config(path).suite.families == ("a", "b")
    assert load.load_config(path, ["suite.families=[c]"]).suite.families == ("c",)
    assert load.load_config(path, [], {"DESKHAND_SUITE__FAMILIES": "[d, e]"}).suite.families == ("d", "e")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_of_the_repository_is_valid(path: Path) -> None:
    load.load_config(path)


@pytest.mark.parametrize("path", sorted(CONFIGS[0].parent.glob("**/*.yaml")), ids=lambda path: path.stem)
def test_a_policy_that_sees_the_screen_uses_the_action_format_of_its_model(path: Path) -> None:
    own = {"Qwen/Qwen2.5-VL": ("qwen25_vl",), "Qwen/Qwen3-VL": ("qwen3_vl",), "Qwen/Qwen3.5": ("qwen35",)}
    names = [names for model, names in own.items() if model in path.read_text()]
    for line in path.read_text().splitlines() if names else []:
        if "action_format:" in line and "a11y_tree" not in line:
            assert line.partition("action_format:")[2].split()[0] in names[0]
    assert not names or "action_format:" in path.read_text(), "the default is not the model's own"


def test_there_is_a_config_for_the_demo() -> None:
    assert "tiny_cpu.yaml" in [path.name for path in CONFIGS]


def test_an_unknown_key_names_the_nearest_one(tmp_path: Path) -> None:
    path = written(tmp_path, "trainer: {learning_rte: 1}\n")
    assert message_of(path) == f"{path}: unknown key 'trainer.learning_rte'; did you mean 'trainer.learning_rate'?"


def test_unrelated_environment_variables_are_ignored() -> None:
    assert load.load_config(environment={"DESKHAND_TEST_FULL": "1", "DESKHAND_SERVER_API_KEY": "x"}) == Config()
    known = message_of(environment={"DESKHAND_LOOP__STEP": "3"})
    assert known.startswith("environment variable DESKHAND_LOOP__STEP: unknown key 'loop.step'; did you mean")
    assert message_of(environment={"DESKHAND_SED": "1"}).endswith("did you mean 'seed'?")


def test_wrong_type_names_the_origin_with_the_highest_precedence(tmp_path: Path) -> None:
    path = written(tmp_path, "loop: {total_steps: 3}\n")
    message = message_of(path, (), {"DESKHAND_LOOP__TOTAL_STEPS": "many"})
    assert message.startswith(
        "environment variable DESKHAND_LOOP__TOTAL_STEPS: loop.total_steps: should be a valid integer"
    )


def test_a_value_out_of_range_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "loop: {group_size: 1}\nagent: {temperature: -1}\n")
    message = message_of(path)
    assert message.startswith(f"{path}: ")
    assert "(and 1 more)" in message
    assert "greater than or equal to" in message


def test_section_that_is_not_a_mapping_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, "trainer: fast\n")
    assert message_of(path).startswith(f"{path}: trainer: must be a mapping with the keys learning_rate")


def test_later_origin_overrides_single_keys_of_a_section(tmp_path: Path) -> None:
    path = written(tmp_path, "policy: {lora: {rank: 4, alpha: 8}}\nloop:\n")
    adapter = load.load_config(path, ["policy.lora.rank=2"]).policy.lora
    assert adapter is not None
    assert (adapter.rank, adapter.alpha) == (2, 8)
    assert load.load_config(path, [], {"DESKHAND_POLICY": "{lora: {alpha: 3}}"}).policy.lora == adapter.model_copy(
        update={"rank": 4, "alpha": 3}
    )


def test_later_origin_can_set_an_optional_section_to_null(tmp_path: Path) -> None:
    path = written(tmp_path, "policy: {lora: {rank: 4}}\n")
    assert load.load_config(path, ["policy.lora=null"]).policy.lora is None
    path = written(tmp_path, "policy: {lora: null}\n")
    adapter = load.load_config(path, ["policy.lora.rank=2"]).policy.lora
    assert adapter is not None
    assert adapter.rank == 2


def test_duplicate_key_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "seed: 1\nloop: {total_steps: 1}\nseed: 2\n")
    assert message_of(path) == f"{path} line 3: invalid YAML: duplicate key 'seed'"


def test_key_that_is_not_a_string_is_an_error_with_its_line(tmp_path: Path) -> None:
    """As of a template whose braces were not filled in."""
    path = written(tmp_path, "seed: 1\n{{ steps }}: 2\n")
    assert message_of(path).startswith(f"{path} line 2: invalid YAML: keys must be strings")


def test_broken_yaml_is_named_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "seed: 1\nloop: [1\n")
    assert message_of(path).startswith(f"{path} line ")


def test_file_that_is_a_list_missing_or_binary_is_a_one_line_error(tmp_path: Path) -> None:
    assert "must be a mapping of keys" in message_of(written(tmp_path, "- 1\n"))
    assert "No such file" in message_of(tmp_path / "absent.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in message_of(binary)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load.load_config().seed = 3  # pyright: ignore[reportAttributeAccessIssue]


PROFILES = (
    "loop: {total_steps: 100, max_concurrent_episodes: 8}\nseed: 4\nprofiles:\n"
    "  smoke: {loop: {total_steps: 2}, max_minutes: 1}\n  slow: {loop: {max_concurrent_episodes: 1}}\n"
)


def test_profile_overrides_its_file_only(tmp_path: Path) -> None:
    path = written(tmp_path, PROFILES)
    made = load.load_config(path, ["max_minutes=3"], {"DESKHAND_LOOP__MAX_CONCURRENT_EPISODES": "5"}, profile="smoke")
    assert (made.loop.total_steps, made.loop.max_concurrent_episodes, made.max_minutes, made.seed) == (2, 5, 3.0, 4)
    assert load.load_config(path) == load.load_config(path, profile="full")
    assert load.load_config(path).loop.total_steps == 100


def test_keys_of_other_profiles_are_checked_too(tmp_path: Path) -> None:
    path = written(
        tmp_path, PROFILES.replace("slow: {loop: {max_concurrent_episodes:", "slow: {loop: {max_concurrent_episode:")
    )
    assert message_of(path) == (
        f"{path} profile slow: unknown key 'loop.max_concurrent_episode'; did you mean 'loop.max_concurrent_episodes'?"
    )


def test_unknown_profile_lists_the_available_ones(tmp_path: Path) -> None:
    path = written(tmp_path, PROFILES)
    with pytest.raises(ConfigError, match="unknown profile 'small'; available: smoke, slow, full"):
        load.load_config(path, profile="small")
    with pytest.raises(ConfigError, match="must map names to settings"):
        load.load_config(written(tmp_path, "profiles: [smoke]\n"))


SERVER = "engine.base_url=http://host:1"
INVALID = [
    (
        "agent.action_format=qwen2_vl",
        "unknown action format 'qwen2_vl'; did you mean 'qwen25_vl' or 'qwen3_vl' or 'qwen35'?",
    ),
    ("group_size=4", "--set group_size=4: unknown key 'group_size'; did you mean 'loop.group_size'?"),
    ("loop.step=3", "--set loop.step=3: unknown key 'loop.step'; did you mean 'loop.total_steps'?"),
    ("zzz=1", "top-level keys: model, device"),
    ("seed", "--set seed: expected key=value, for example --set trainer.learning_rate=1e-4"),
    ("engine.backend=vlm", "engine.backend: unknown engine 'vlm'; did you mean 'vllm'?"),
    ("engine.backend=sglang", "engine.base_url is required by backend sglang"),
    (f"engine.backend=openai {SERVER}", "engine.served_model_name is required by backend openai"),
    (SERVER, "engine.base_url is not used by backend hf"),
    (f"engine.backend=sglang {SERVER} engine.venv_python=/p", "engine.venv_python is not used by backend sglang"),
    (
        f"engine.backend=vllm {SERVER} engine.venv_python=/p",
        "venv_python and extra_args are for a server launched here",
    ),
]


@pytest.mark.parametrize(("settings", "message"), INVALID)
def test_an_invalid_setting_is_one_line_with_a_fix(settings: str, message: str) -> None:
    assert message in message_of(None, tuple(settings.split()))


UNTRAINABLE = {
    f"engine.backend=openai {SERVER} engine.served_model_name=m": "engine.backend openai cannot be trained",
    **{f"engine.backend={backend} agent.top_p=0.9": "agent.top_p < 1" for backend in ("hf", "vllm")},
    f"engine.backend=sglang {SERVER} agent.top_p=0.9": "agent.top_p < 1",
    "agent.temperature=0": "agent.temperature 0 makes all episodes of a group identical",
    "dtype=float16": "dtype float16 underflows",
}


def test_untrainable_settings_have_a_training_error() -> None:
    for settings, message in UNTRAINABLE.items():
        assert (load.load_config(None, settings.split()).training_error or "").startswith(message)
    for settings in ("dtype=bfloat16", "evaluation.temperature=0"):
        assert load.load_config(None, [settings]).training_error is None
