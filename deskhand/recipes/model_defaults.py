"""Agent settings that fit a model: action format, whether the prompt describes it, and the length of replies.

Used by the recipes and the public API; start with `fit_config`. A setting that the user gave always wins. A checkpoint
that Deskhand trained keeps the settings that it was trained with; other models get the format of their family, or the
general one, and a prompt that describes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deskhand.config.load import Config, config_of_run
from deskhand.config.schema import AgentConfig
from deskhand.errors import ConfigError
from deskhand.models import hub
from deskhand.models.architectures import PUBLISHED
from deskhand.models.families import FAMILIES
from deskhand.models.hub import AGENT_FILE
from deskhand.models.load import adapter_base, checkpoint_folder, read_json
from deskhand.store.run import Run

FITTED = ("action_format", "prompt_style", "max_new_tokens")
TRAINED = (*FITTED, "observation", "max_pixels")
"""Settings of the agent that a trained checkpoint keeps."""
BUNDLED = {name: AgentConfig.model_fields[name].default for name in FITTED}
"""The bundled policy knows its action format."""
GENERAL = {"action_format": BUNDLED["action_format"], "prompt_style": "full", "max_new_tokens": 512}
"""Any model that follows instructions."""
REASONING_TOKENS = 2048
"""Maximum tokens of a reply of a model that thinks before it acts."""
MIN_GENERAL_VOCABULARY = 10_000
"""Models with fewer tokens are made like the bundled one, and know its action format."""
_FORMATS = (
    (r"ui-?tars-?1\.?5", "uitars_1_5"),
    (r"ui-?tars-?2(?!b)|doubao.*ui-?tars|\bseed-?1\.[5-9]", "uitars_point"),
    (r"ui-?tars", "uitars_1_0"),
    (r"opencua-(qwen2-|a3b)", "opencua_relative"),
    (r"opencua", "opencua_qwen25"),
    (r"evocua", "evocua"),
    (r"qwen-?3\.[5-9]", "qwen35"),
    (r"gui-?owl-?1\.?5|qwen-?3-?vl", "qwen3_vl"),
    (r"gui-?owl", "gui_owl"),
    (r"qwen-?2\.?5-?vl", "qwen25_vl"),
    (r"kimi-?(vl|k2\.?5)", "kimi"),
    (r"glm-?4\.\dv", "glm_v"),
    (r"\bholo-?1", "holo1_5"),
    (r"\bholo-?[23]", "holo"),
    (r"scalecua", "scalecua"),
    (r"\bfara\b", "fara"),
    (r"mai-?ui", "mai_ui"),
    (r"gemini", "gemini"),
    (r"claude-?3\.5", "anthropic_20241022"),
    (r"claude", "anthropic_20250124"),
    (r"computer-use-preview", "openai_preview"),
    (r"gpt-?5\.[4-9]", "openai_ga"),
)
"""Names of model families, as in checkpoints, servers and vendors' APIs, and the action format that each publishes; the
first that matches."""
_REASONING = re.compile(r"thinking|reasoning|-r1\b|qvq")


def defaults_of_name(name: str) -> dict[str, Any]:
    """Return the settings for a model that is known by name alone, such as a served one."""
    plain = re.sub(r"[_\s:]+", "-", name.rsplit("/", 1)[-1].lower())
    plain = re.sub(r"(?<=\d)-(?=\d\b)", ".", plain)  # qwen2-5-vl and qwen2.5-vl
    found = next((action_format for pattern, action_format in _FORMATS if re.search(pattern, plain)), None)
    longest = {"max_new_tokens": REASONING_TOKENS} if _REASONING.search(plain) else {}
    return {**GENERAL, **({"action_format": found} if found else {}), **longest}


def defaults_of_checkpoint(source: str) -> dict[str, Any]:
    """Return the settings for a checkpoint: those it was trained with, or those of its family.

    Raises `ConfigError` if a file in it is damaged.
    """
    if source == "tiny":
        return dict(BUNDLED)
    named = defaults_of_name(source)
    if hub.is_hub_id(source) and source in PUBLISHED:
        return named
    try:
        folder = checkpoint_folder(source, hub.CONFIG_FILES)
    except ConfigError:  # loading says what is wrong with it
        return named
    if (stored := _trained_with(folder)) is not None:
        return {**named, **stored}
    if base := adapter_base(folder):
        return defaults_of_checkpoint(base)
    if not (folder / "config.json").is_file():
        return named
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    size = text.get("vocab_size") if isinstance(text, dict) else None
    if isinstance(size, int) and size < MIN_GENERAL_VOCABULARY:
        return dict(BUNDLED)
    family = FAMILIES.get(str(config.get("model_type")))
    if family and named["action_format"] == GENERAL["action_format"]:
        named["action_format"] = family.action_format
    return named


def _trained_with(folder: Path) -> dict[str, Any] | None:
    """Return the agent's settings in the run that the checkpoint belongs to, or those it was exported with."""
    run_dir = folder.resolve().parent.parent
    if folder.resolve().parent.name == "checkpoints" and (run_dir / "run.sqlite").is_file():
        with Run.open(run_dir, read_only=True) as run:
            return trained_settings(config_of_run(run.metadata, run_dir).agent)
    if not (folder / AGENT_FILE).is_file():
        return None
    found = read_json(folder / AGENT_FILE)
    try:
        return trained_settings(AgentConfig.model_validate({name: found[name] for name in TRAINED if name in found}))
    except ValueError as error:
        raise ConfigError(f"{folder / AGENT_FILE}: {' '.join(str(error).split())[:200]}; export it again") from None


def trained_settings(agent: AgentConfig) -> dict[str, Any]:
    """Return the settings that a trained checkpoint keeps, as JSON types."""
    values = agent.model_dump(mode="json")
    return {name: values[name] for name in TRAINED}


def write_agent_file(agent: AgentConfig, folder: Path) -> None:
    """Write the settings that an exported checkpoint was trained with."""
    text = json.dumps(trained_settings(agent), indent=1)
    (folder / AGENT_FILE).write_text(text + "\n", encoding="utf-8")


def model_of(config: Config) -> str:
    """Return the model that the config's agent asks: at an endpoint its name there."""
    return (config.engine.backend == "openai" and config.engine.served_model_name) or config.model


def fit_config(config: Config) -> Config:
    """Return the config with agent settings that fit its model, unless they were set."""
    asked = model_of(config)
    defaults = defaults_of_checkpoint(asked) if asked == config.model else defaults_of_name(asked)
    return config.model_copy(update={"agent": fit_agent(config.agent, defaults)})


def fit_agent(agent: AgentConfig, defaults: Mapping[str, Any]) -> AgentConfig:
    """Return the agent's settings with `defaults` in place of those that were not set; they still count as not set."""
    values = {name: getattr(agent, name) for name in type(agent).model_fields}
    values |= {name: value for name, value in defaults.items() if name not in agent.model_fields_set}
    is_open = "action_format" not in agent.model_fields_set and "observation" not in defaults
    if is_open and values["observation"] == "a11y_tree":  # without an image there are no pixels of it
        values["action_format"] = GENERAL["action_format"]
    return AgentConfig.model_construct(set(agent.model_fields_set), **values)
