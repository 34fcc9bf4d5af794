"""Teachers of on-policy distillation: a checkpoint here and the same one behind a server score alike; others are
refused by name."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import training_fixture
from fake_sglang import listening
from recording import png
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deskhand.config.trainer import DistillationConfig, PolicyConfig
from deskhand.engines.http_engine.engine import ServerTimeouts
from deskhand.errors import ConfigError, InfrastructureError
from deskhand.models.load import LoadedModel, load
from deskhand.models.tiny.tokenizer import build_tokenizer
from deskhand.recipes.teacher import load_teacher
from deskhand.recorder.graph import Call, CallGraph, Sequence
from deskhand.recorder.images import ImageCache
from deskhand.recorder.messages import ImagePart, message
from deskhand.recorder.renderer import ChatRenderer
from deskhand.trainer.policy import Policy
from deskhand.types import Completion, ImageSpan

LIMITS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "max_tokens": 500, "environment": {"KEY": "secret"}}
QUICK = ServerTimeouts(outage_s=0.2, poll_s=0.05, request_s=10)


class FakeServer:
    """vLLM's routes for one checkpoint: it expands placeholders by the sizes of the images that it decodes, and scores
    every prompt token that is not a placeholder."""

    def __init__(self, model: LoadedModel) -> None:
        self.model, self.policy, self.images = model, Policy(model.model), ImageCache(model.image_processor)
        self.has_generate, self.failures, self.keys = True, 0, set[str]()
        routes = [Route("/v1/models", self.models), Route("/tokenize", self.tokenize, methods=["POST"])]
        self.app = Starlette(routes=[*routes, Route("/inference/v1/generate", self.generate, methods=["POST"])])

    async def models(self, request: Request) -> Response:
        self.keys.add(request.headers.get("authorization", ""))
        return JSONResponse({"data": [{"id": "teacher", "max_model_len": 512}]})

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        return JSONResponse({"tokens": self.model.tokenizer.encode(body["prompt"], add_special_tokens=False)})

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        if not self.has_generate:
            return JSONResponse({"error": {"message": "Not Found"}}, 404)
        if "token_ids" not in body:
            return JSONResponse({"error": {"message": "token_ids: Field required"}}, 422)
        if self.failures:
            self.failures -= 1
            return JSONResponse({"error": {"message": "engine overloaded"}}, 503)
        assert body["sampling_params"]["prompt_logprobs"] == 0
        parts, ids, spans, sent = iter(body.get("content_parts", ())), list[int](), list[ImageSpan](), {}
        for token in body["token_ids"]:
            if token == self.model.image_token_id:
                part = next(parts)
                if part["url"] is not None:
                    sent[part["uuid"]] = self.images.add(base64.b64decode(part["url"].partition(",")[2]))
                image = sent[part["uuid"]]
                spans.append(ImageSpan(len(ids), image.tokens, image.sha256))
                ids += [token] * image.tokens
            else:
                ids.append(token)
        scored = [at > 0 and token != self.model.image_token_id for at, token in enumerate(ids)]
        versions = tuple(0 if one else -1 for one in scored)
        row = Sequence(tuple(ids), tuple(scored), (0.0,) * len(ids), versions, tuple(spans), ())
        values = iter(self.policy.logprobs([row], self.images)[0].tolist())
        entries = [
            {str(token): {"logprob": next(values) if one else -1.0}} for token, one in zip(ids, scored, strict=True)
        ]
        return JSONResponse({"prompt_token_ids": ids, "prompt_logprobs": [None, *entries[1:]], "choices": []})


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(str(training_fixture.checkpoint(tmp_path_factory.mktemp("student"))))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The teacher."""
    return load(str(training_fixture.checkpoint(tmp_path_factory.mktemp("teacher"), seed=1)))


@pytest.fixture(scope="module")
def recorded(student: LoadedModel) -> tuple[list[Sequence], ImageCache]:
    """Two sequences, of which the first repeats a screenshot."""
    renderer, images, rows = ChatRenderer(student.tokenizer), ImageCache(student.image_processor), list[Sequence]()
    for number, seeds in enumerate([(1, 2, 1), ()]):
        shown = [ImagePart(images.add(png(seed, 64, 32 * seed)).sha256) for seed in seeds]
        prompt = renderer.render((message("user", [*shown, "Click the blue square"]),), images)
        ids = (*renderer.encode_text('{"op":"done"}'), renderer.stop_ids[0])
        done = Completion(ids, (-1.0,) * len(ids), (0,) * len(ids), "stop", prompt.token_ids)
        rows += CallGraph([Call(str(number), None, prompt.token_ids, prompt.spans, done)]).sequences()
    return rows, images


def test_a_served_teacher_and_a_checkpoint_score_alike(student, other, recorded):
    server = FakeServer(other)
    here = load_teacher(DistillationConfig(teacher=other.source), student, (), PolicyConfig(), **LIMITS)
    with listening(server.app) as url:
        config = DistillationConfig(teacher=url, api_key_env="KEY")
        served = load_teacher(config, student, (), PolicyConfig(), **LIMITS, patience=QUICK)
        server.failures = 1
        expected, found = here(*recorded), served(*recorded)
        assert server.keys == {"Bearer secret"}
        server.failures = 1000
        with pytest.raises(InfrastructureError, match="engine overloaded"):
            served(*recorded)
    for one, two, row in zip(expected, found, recorded[0], strict=True):
        assert len(one) == sum(row.loss_mask)
        np.testing.assert_allclose(one, two, atol=1e-5)
    own = Policy(student.model).logprobs(*recorded)
    assert np.abs(np.concatenate(own) - np.concatenate(expected)).max() > 0.1


def test_a_teacher_that_reads_ids_or_pixels_otherwise_is_refused_by_name(student, other, tmp_path):
    def refused(teacher: str, model: LoadedModel = student, **changes: Any) -> str:
        config = DistillationConfig(teacher=teacher)
        with pytest.raises(ConfigError) as error:
            load_teacher(config, model, (), PolicyConfig(), **{**LIMITS, **changes}, patience=QUICK)
        return str(error.value)

    folder = training_fixture.checkpoint(tmp_path / "bright", seed=1)
    processing = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**processing, "image_mean": [0.1, 0.1, 0.1]}))
    assert f"the image processor of {folder} has image_mean (0.1, 0.1, 0.1)" in refused(str(folder))
    tokenizer = build_tokenizer([*training_fixture.CORPUS, "Words of another corpus"], merges=70)
    stranger = dataclasses.replace(student, tokenizer=tokenizer)
    assert f"the tokenizer of {other.source} is not that of" in refused(other.source, stranger)
    server = FakeServer(other)
    with listening(server.app) as url:
        assert f"the tokenizer of teacher at {url} is not that of the model" in refused(url, stranger)
        assert "start it with --max-model-len 601" in refused(url, max_tokens=600)
        server.has_generate = False
        assert "start vLLM with --enable-scale-out" in refused(url)
