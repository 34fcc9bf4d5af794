"""The `vlm_judge` check against Deskhand's own endpoint: votes, thresholds, unclear replies."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from deskhand.desktop.base import Frame
from deskhand.engines.scripted import ScriptedEngine
from deskhand.errors import ConfigError, EvaluatorError, InfrastructureError
from deskhand.models.load import load_processors
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client
from deskhand.tasks.checks.vlm_judge import VlmJudgeCheck, VlmJudgeClient
from deskhand.tasks.formats.yaml_task import load_task
from deskhand.tasks.judge import judge
from deskhand.tasks.outcome import Errored, Scored

QUESTION = "Is the lamp on the screen red?"


@cache
def reading() -> tuple[Any, Any]:
    return load_processors("tiny")


class OneScreen:
    """A desktop of which only the screen is asked; each look is a new frame."""

    def __init__(self) -> None:
        self.looks = 0

    async def observe(self) -> Frame:
        self.looks += 1
        bgrx = np.full((64, 96, 4), self.looks, np.uint8)
        return Frame(bgrx, self.looks, str(self.looks), 0.0, "quiet", None, (0, 0))


@asynccontextmanager
async def judges(*replies: str) -> AsyncIterator[tuple[VlmJudgeClient, Recorder]]:
    """The recorder's endpoint, whose model says `replies` one after the other."""
    tokenizer, processor = reading()
    renderer = ChatRenderer(tokenizer)
    engine = ScriptedEngine(lambda text: tokenizer.encode(text, add_special_tokens=False), renderer.stop_ids[0])
    recorder = Recorder(renderer, engine, ImageCache(processor))

    async def script() -> AsyncIterator[str]:
        for reply in replies:
            yield reply

    async with in_process_client(create_app(recorder, secrets.token_urlsafe(32))) as http:
        client = openai.AsyncOpenAI(
            base_url="http://recorder/v1", api_key=recorder.open_session("judging"), http_client=http, max_retries=0
        )
        with engine.playing(script()):
            yield VlmJudgeClient("http://recorder/v1", "box", client=client), recorder
    recorder.close()


@pytest.mark.parametrize(
    ("replies", "expected", "value"),
    [(("yes", "Yes.", "no"), True, 1.0), (("No", "no, it is blue", "**no**"), True, 0.0), (("no",) * 3, False, 1.0)],
)
async def test_the_majority_of_the_votes_decides(replies: tuple[str, ...], expected: bool, value: float) -> None:
    desktop = OneScreen()
    async with judges(*replies) as (judging, recorder):
        check = await VlmJudgeCheck(question=QUESTION, expected=expected).measure_with(desktop, judging)
        calls = recorder.close_session("judging").calls
    assert (check.value, check.untrusted_source, check.no_retry) == (value, True, True)
    (finding,) = check.findings
    assert (finding.clause, finding.expected) == (QUESTION, "yes" if expected else "no")
    assert finding.read in ("2 yes, 1 no, 0 neither", "0 yes, 3 no, 0 neither")
    assert len(calls) == 3
    assert all(len(call.spans) == 1 for call in calls), "each vote sees one picture"
    assert desktop.looks == 1


@pytest.mark.parametrize(
    "replies",
    [
        ("yes", "no", "yes", "no"),
        ("yes", "yes", "perhaps", "I cannot see a lamp"),
        ("maybe", "the lamp", "", "yesterday"),
    ],
)
async def test_votes_without_agreement_are_an_evaluator_error(replies: tuple[str, ...]) -> None:
    async with judges(*replies) as (judging, _):
        with pytest.raises(EvaluatorError, match=r"no agreement .*neither.*lamp"):
            await VlmJudgeCheck(question=QUESTION, votes=4, threshold=0.75).measure_with(OneScreen(), judging)


async def test_an_endpoint_that_fails_is_an_outage_that_names_it() -> None:
    async with judges("yes") as (judging, _):
        with pytest.raises(InfrastructureError, match="http://recorder/v1"):
            await VlmJudgeCheck(question=QUESTION, votes=2).measure_with(OneScreen(), judging)


def test_missing_endpoint_variables_are_named() -> None:
    with pytest.raises(ConfigError, match="DESKHAND_JUDGE_BASE_URL and DESKHAND_JUDGE_MODEL"):
        VlmJudgeClient.from_environment({})
    environment = {"DESKHAND_JUDGE_BASE_URL": "http://127.0.0.1:1/v1", "DESKHAND_JUDGE_MODEL": "m"}
    assert VlmJudgeClient.from_environment(environment) == VlmJudgeClient("http://127.0.0.1:1/v1", "m", "none")


def written(tmp_path: Path) -> Path:
    path = tmp_path / "lamp.yaml"
    check = f"check:\n  vlm_judge: {{question: '{QUESTION}'}}\n"
    path.write_text(f"deskhand: 2\nid: lamp\ninstruction: Switch the lamp on\nlimits: {{steps: 3}}\n{check}")
    return path


async def test_a_task_file_uses_the_endpoint_of_the_environment_once(tmp_path: Path, monkeypatch) -> None:
    task = load_task(written(tmp_path))
    async with judges("no", "no", "no", "yes", "yes", "yes") as (judging, recorder):
        monkeypatch.setattr(VlmJudgeClient, "from_environment", classmethod(lambda cls: judging))
        outcome = await judge(task, OneScreen(), grace_s=0.5)
        assert outcome == Scored(0.0, {"end_state": 0.0}, guest_trusted=True)
        assert len(recorder.close_session("judging").calls) == 3
    monkeypatch.undo()
    monkeypatch.delenv("DESKHAND_JUDGE_BASE_URL", raising=False)
    outcome = await judge(task, OneScreen())
    assert isinstance(outcome, Errored)
    assert "DESKHAND_JUDGE_BASE_URL" in outcome.message
