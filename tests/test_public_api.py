"""What `import deskhand` exports, how it is imported, and how references to plug-ins are resolved."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import deskhand
from deskhand import registry
from deskhand.algorithms.base import get_algorithm
from deskhand.errors import ConfigError
from deskhand.rollout.reward import apply_reward, load_reward

NAMES = """Agent AgentConfig AgentError CheckResult Config ConfigError DeskhandError Desktop DesktopAgent Episode
EpisodeContext EvalReport EvaluatorError Frame HealthError InfrastructureError Op StepReport Task TaskSource TrainResult
__version__ action_format algorithm evaluate evaluate_async load_config load_episode load_tasks open_run register reward
run_episode task_family train train_async""".split()  # noqa: SIM905


def test_the_exports_are_these():
    assert dir(deskhand) == sorted(deskhand.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(deskhand, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        deskhand.trian  # noqa: B018


def test_every_function_has_a_docstring_with_an_example():
    functions = [name for name in NAMES if name.islower() and not name.startswith("_") and not name.endswith("_async")]
    assert [name for name in functions if "Examples:" not in (getattr(deskhand, name).__doc__ or "")] == []


def test_the_import_is_light():
    code = "import sys, deskhand; print([n for n in ('torch', 'pydantic', 'numpy', 'openai') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_the_synchronous_functions_refuse_a_running_event_loop(tmp_path):
    with pytest.raises(ConfigError, match=r"await deskhand\.train_async"):
        deskhand.train("configs/tiny_cpu.yaml", run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["agent", "action_format", "algorithm", "desktop", "engine", "suite"])
def test_every_built_in_part_can_be_imported(kind):
    for name in registry.names(kind):
        assert registry.resolve(kind, name) is not None


def test_references_are_names_modules_and_files(tmp_path, monkeypatch):
    (tmp_path / "plugin_module.py").write_text("class Thing:\n    async def run(self, episode): ...\n")
    monkeypatch.chdir(tmp_path)
    by_module = registry.resolve("agent", "plugin_module:Thing")
    by_file = registry.resolve("agent", f"{tmp_path}/plugin_module.py:Thing")
    assert by_module.__name__ == by_file.__name__ == "Thing"
    assert registry.resolve("agent", "plugin_module.py:Thing") is by_file, "a file runs once"


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("no_such_module:x", "reward: cannot import no_such_module:x: no module named no_such_module"),
        ("json:lods", "reward: cannot import json:lods: module json has no attribute lods; did you mean loads?"),
        ("missing.py:x", "reward: cannot import missing.py:x: no file missing.py"),
        ("broken.py:x", "reward: cannot import broken.py:x: broken.py raised ZeroDivisionError: division by zero"),
        ("no_name", "reward: unknown reward 'no_name'"),
    ],
)
def test_an_error_names_the_key_the_reference_and_the_failed_import(tmp_path, monkeypatch, ref, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("x = 1 / 0\n")
    with pytest.raises(ConfigError) as caught:
        registry.resolve("reward", ref)
    assert str(caught.value).startswith(message)


def test_a_built_in_name_cannot_be_taken():
    with pytest.raises(ConfigError, match="built in"):
        deskhand.algorithm("grpo")(lambda rewards: rewards)


def test_an_algorithm_by_decorator_is_known_by_its_name():
    @deskhand.algorithm("leave_one_out_of_a_test")
    def made(rewards):
        return rewards - rewards.mean()

    found = get_algorithm("leave_one_out_of_a_test")
    assert found is made
    np.testing.assert_allclose(found(np.array([0.0, 1.0])), [-0.5, 0.5])
    with pytest.raises(ConfigError, match="decorate the function"):
        get_algorithm("json:loads")


async def test_a_reward_that_is_not_finite_names_its_function_and_errored_episodes_never_reach_it():
    import episode_results

    def endless(episode):
        return float("nan")

    def failing(episode):
        raise KeyError("score")

    scored, errored = episode_results.result(), episode_results.result(None)
    with pytest.raises(ConfigError, match=r"endless must return a finite number, got nan"):
        await apply_reward(endless, scored)
    with pytest.raises(ConfigError, match=r"failing raised KeyError"):
        await apply_reward(failing, scored)
    assert await apply_reward(failing, errored) is errored
    with pytest.raises(ConfigError, match="must be a plain function"):
        load_reward("json:JSONDecoder")
