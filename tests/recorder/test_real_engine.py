"""End to end with a real model: openai client, endpoint, recorder and hf engine, checked with transformers alone."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import chat_templates
import numpy as np
import openai
import pytest
import torch
from random_models import build
from recording import ADMIN, image_part, openai_client, text_part
from transformers import PreTrainedTokenizerFast

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf import HfEngine
from deskhand.models.load import LoadedModel
from deskhand.recorder.graph import CallGraph, Sequence
from deskhand.recorder.images import ImageCache
from deskhand.recorder.recorder import Recorder
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.server import create_app, in_process_client


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen3_5"])
def loaded(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerFast, image_processor: Any) -> LoadedModel:
    torch.set_num_threads(1)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = getattr(chat_templates, request.param.upper().removesuffix("_MOE"))
    names = {
        "image": "<|image_pad|>",
        "video": "<|video_pad|>",
        "vision_start": "<|vision_start|>",
        "vision_end": "<|vision_end|>",
    }
    ids = {f"{key}_token_id": tokenizer.convert_tokens_to_ids(name) for key, name in names.items()}
    model = build(request.param, vocabulary=len(tokenizer), ids=ids)
    return LoadedModel(model.float(), tokenizer, image_processor, request.param, "random")


async def play(client: openai.AsyncOpenAI, seed: int, turns: int) -> None:
    """Screenshots window: grow to 3, drop to 1."""
    talk: list[dict[str, Any]] = []
    for turn in range(turns):
        content = [image_part(seed * 100 + turn), text_part(f"Click the button {turn} <|image_pad|>")]
        talk.append({"role": "user", "content": content})
        if sum(isinstance(one["content"], list) for one in talk) > 3:
            talk = [
                {"role": one["role"], "content": "seen"} if one["role"] == "user" else one for one in talk[:-1]
            ] + talk[-1:]
        reply = await client.chat.completions.create(model="m", messages=talk, max_tokens=7, temperature=0.8, seed=seed)
        talk.append(reply.choices[0].message.model_dump(exclude_none=True))


def by_transformers(
    loaded: LoadedModel, row: Sequence, images: ImageCache, banned_ids: tuple[int, ...]
) -> torch.Tensor:
    """Log-probs [T] of a row's tokens by one plain forward pass, 0 for the first."""
    ids = torch.tensor([row.token_ids])
    shown = [images[span.sha256] for span in row.spans]
    with torch.no_grad():
        logits = loaded.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=torch.cat([torch.from_numpy(np.asarray(image.pixel_values)) for image in shown]),
            image_grid_thw=torch.tensor([image.grid_thw for image in shown]),
            mm_token_type_ids=(ids == loaded.image_token_id).int(),
        ).logits[0, :-1]
    logits[:, list(banned_ids)] = float("-inf")
    scores = torch.log_softmax(logits / row.temperature, -1)
    return torch.cat([torch.zeros(1), scores[torch.arange(len(scores)), ids[0, 1:]]])


async def test_recorded_log_probs_are_those_of_the_merged_rows(loaded: LoadedModel) -> None:
    # Qwen3.5's template trims replies, so that they would fork.
    renderer = ChatRenderer(loaded.tokenizer, history="preserve" if loaded.family == "qwen3_5" else "error")
    images = ImageCache(loaded.image_processor)
    engine = HfEngine(loaded, EngineConfig(max_num_seqs=4))
    recorder = Recorder(renderer, engine, images)
    try:
        async with in_process_client(create_app(recorder, ADMIN)) as http:
            clients = [openai_client(http, recorder.open_session(f"e{i}")) for i in range(5)]
            await asyncio.gather(*(play(client, seed, 6) for seed, client in enumerate(clients)))
    finally:
        await engine.close()
    graphs = [CallGraph.from_dict(recorder.close_session(f"e{i}").to_dict()) for i in range(5)]
    assert not recorder.violations
    rows = {merge: [row for graph in graphs for row in graph.sequences(merge)] for merge in (True, False)}
    assert len(rows[False]) == 30
    assert len(rows[True]) == 10, "a window that grows to 3 and drops to 1 makes two sequences of 6 turns"
    for merged in rows.values():
        differences = np.concatenate(
            [
                (by_transformers(loaded, row, images, renderer.banned_ids).numpy() - np.array(row.logprobs))[
                    np.array(row.loss_mask)
                ]
                for row in merged
            ]
        ).astype(np.float64)
        assert np.abs(differences).max() < 1e-3
        assert (np.expm1(differences) - differences).mean() < 1e-6
    row = next(row for row in rows[True] if len(row.spans) > 1)
    swapped = {row.spans[0].sha256: images[row.spans[1].sha256]}
    blind = by_transformers(loaded, row, {**images, **swapped}, renderer.banned_ids).numpy()  # type: ignore[arg-type]
    assert np.abs(blind - np.array(row.logprobs))[np.array(row.loss_mask)].max() > 1e-2, (
        "the recorded pixels must matter"
    )
