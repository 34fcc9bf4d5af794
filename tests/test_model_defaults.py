"""Agent settings that nobody set fit the model: by its files, by its name, else those of a general model."""

from __future__ import annotations

import json

import literal_model
import pytest
import training_fixture

import deskhand
from deskhand.actions import formats
from deskhand.config.load import AGENT_SET, config_of_run, load_config
from deskhand.config.schema import AgentConfig, Config
from deskhand.errors import ConfigError
from deskhand.recipes import model_defaults
from deskhand.recipes.model_defaults import defaults_of_checkpoint, defaults_of_name, fit_agent, fit_config
from deskhand.store.run import Run

BY_NAME = {
    "some-model": "deskhand_json",
    "gpt-4o": "deskhand_json",
    "Qwen2-VL-7B-Instruct": "deskhand_json",
    "qwen2.5vl:7b": "qwen25_vl",
    "Qwen/Qwen2.5-VL-72B-Instruct-AWQ": "qwen25_vl",
    "qwen2_5_vl_3b": "qwen25_vl",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3_vl",
    "qwen3.5-35b-a3b": "qwen35",
    "Qwen/Qwen3.5-4B": "qwen35",
    "meituan/EvoCUA-8B": "evocua",
    "GUI-Owl-7B": "gui_owl",
    "GUI-Owl-1.5-8B-Instruct": "qwen3_vl",
    "moonshotai/Kimi-VL-A3B-Instruct": "kimi",
    "zai-org/GLM-4.5V": "glm_v",
    "Hcompany/Holo1.5-7B": "holo1_5",
    "Hcompany/Holo2-8B": "holo",
    "OpenGVLab/ScaleCUA-7B": "scalecua",
    "microsoft/Fara-7B": "fara",
    "Tongyi-MAI/MAI-UI-8B": "mai_ui",
    "UI-TARS-2B-SFT": "uitars_1_0",
    "ui-tars-72b-dpo": "uitars_1_0",
    "ByteDance-Seed/UI-TARS-1.5-7B": "uitars_1_5",
    "doubao-1-5-ui-tars-250428": "uitars_point",
    "OpenCUA-7B": "opencua_qwen25",
    "OpenCUA-Qwen2-7B": "opencua_relative",
    "claude-sonnet-4-5": "anthropic_20250124",
    "claude-3-5-sonnet-20241022": "anthropic_20241022",
    "computer-use-preview": "openai_preview",
    "gemini-2.5-computer-use-preview-10-2025": "gemini",
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_served_model_gets_the_format_of_its_family_and_a_prompt_that_describes_it(name: str) -> None:
    found = defaults_of_name(name)
    assert (found["action_format"], found["prompt_style"]) == (BY_NAME[name], "full")
    assert found["max_new_tokens"] >= 512
    assert formats.get(found["action_format"])


def test_models_that_think_before_they_act_get_longer_replies() -> None:
    assert (
        defaults_of_name("Qwen3-VL-4B-Thinking")["max_new_tokens"] > defaults_of_name("Qwen3-VL-4B")["max_new_tokens"]
    )


def test_the_bundled_policy_and_models_made_like_it_keep_their_settings(tmp_path) -> None:
    assert fit_config(Config()) == Config()
    made = training_fixture.checkpoint(tmp_path / "made")
    fitted = fit_config(Config(model=str(made))).agent
    assert (fitted.action_format, fitted.prompt_style) == ("deskhand_json", "compact")


@pytest.mark.parametrize(
    ("kind", "expected"), [("qwen2_5_vl", "qwen25_vl"), ("qwen3_vl_moe", "qwen3_vl"), ("qwen3_5", "qwen35")]
)
def test_a_checkpoint_gets_the_format_of_its_architecture_unless_its_name_says_more(tmp_path, kind, expected) -> None:
    for name, action_format in (("model", expected), ("UI-TARS-1.5-7B", "uitars_1_5")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": kind, "vocab_size": 151936}))
        assert defaults_of_checkpoint(str(tmp_path / name))["action_format"] == action_format


def test_a_setting_that_was_set_wins_also_if_it_is_the_default() -> None:
    set_by_user = load_config(None, ["model=Qwen/Qwen3-VL-4B-Instruct", "agent.prompt_style=compact"])
    agent = fit_config(set_by_user).agent
    assert (agent.action_format, agent.prompt_style, agent.max_new_tokens) == ("qwen3_vl", "compact", 512)
    again = fit_agent(agent, defaults_of_name("UI-TARS-1.5-7B"))
    assert (again.action_format, again.prompt_style) == ("uitars_1_5", "compact")


def test_text_observations_are_answered_in_the_general_format() -> None:
    config = load_config(None, ["model=Qwen/Qwen2.5-VL-3B-Instruct", "agent.observation=a11y_tree"])
    assert fit_config(config).agent.action_format == "deskhand_json"


def test_an_endpoint_named_in_the_config_is_the_model() -> None:
    words = ["engine.backend=openai", "engine.base_url=http://h/v1", "engine.served_model_name=UI-TARS-1.5-7B"]
    assert fit_config(load_config(None, words)).agent.action_format == "uitars_1_5"


def test_what_was_set_is_remembered_with_the_run(tmp_path) -> None:
    config = fit_config(load_config(None, ["model=Qwen/Qwen3-VL-4B-Instruct", "agent.max_new_tokens=99"]))
    metadata = {"config": config.model_dump(mode="json"), AGENT_SET: sorted(config.agent.model_fields_set)}
    stored = config_of_run(metadata, tmp_path)
    assert stored == config
    assert stored.agent.model_fields_set == {"max_new_tokens"}
    changed = config_of_run(metadata, tmp_path, ["agent={prompt_style: compact}", "agent.top_p=0.5"])
    assert changed.agent.model_fields_set == {"max_new_tokens", "prompt_style", "top_p"}
    fitted = fit_agent(changed.agent, model_defaults.BUNDLED)
    assert (fitted.action_format, fitted.prompt_style, fitted.max_new_tokens) == ("deskhand_json", "compact", 99)
    older = config_of_run({"config": config.model_dump(mode="json")}, tmp_path)
    assert fit_agent(older.agent, model_defaults.BUNDLED) == older.agent, "of older runs everything counts as set"


def test_a_trained_checkpoint_keeps_the_settings_that_it_was_trained_with(tmp_path) -> None:
    agent = AgentConfig(action_format="pyautogui", prompt_style="full", max_new_tokens=77, max_pixels=10**6)
    run_dir = tmp_path / "run"
    checkpoint = run_dir / "checkpoints" / "step-000002"
    Run.create(run_dir, {"config": Config(agent=agent).model_dump(mode="json")}).close()
    exported = tmp_path / "exported"
    for folder in (checkpoint, exported):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "vocab_size": 151936}))
    model_defaults.write_agent_file(agent, exported)
    for folder in (checkpoint, exported):
        fitted = fit_config(Config(model=str(folder))).agent
        assert fitted.model_dump() == agent.model_dump(), folder


def test_a_damaged_agent_file_is_one_line(tmp_path) -> None:
    (tmp_path / "agent_config.json").write_text('{"prompt_style": "loud"}')
    with pytest.raises(ConfigError, match=r"agent_config\.json: .*prompt_style.*export it again") as caught:
        defaults_of_checkpoint(str(tmp_path))
    assert "\n" not in str(caught.value)


async def test_an_agent_made_in_python_gets_what_it_does_not_set(tmp_path) -> None:
    tasks = deskhand.load_tasks("basics", split="test", families=["terminal_run"], count=1)
    with literal_model.served() as (model, address):
        report = await deskhand.evaluate_async(
            address,
            tasks=tasks,
            run_dir=tmp_path / "run",
            served_model_name="fake",
            agent=deskhand.DesktopAgent(max_new_tokens=99, history="full"),
        )
    assert report.success.hits == report.success.total == 1
    assert model.asked[0]["messages"][0]["role"] == "system"
    assert model.asked[0]["max_tokens"] == 99
    with Run.open(tmp_path / "run", read_only=True) as run:
        assert set(run.metadata[AGENT_SET]) == {"max_new_tokens", "history"}
