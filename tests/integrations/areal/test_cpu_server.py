"""The inference server that needs no GPU: SGLang's protocol as AReaL speaks it, on the hf engine."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import areal_models
import httpx2
import numpy as np
import pytest
import pytest_asyncio
import recording
import torch
from patience import limit
from safetensors.torch import load_file, save_file

from deskhand.integrations.areal.cpu_server import CpuInferenceServer, expand_prompt
from deskhand.models.load import load
from deskhand.types import PreparedImage

IMAGE = 7
PICTURE = base64.b64encode(recording.png(1, 32, 24)).decode()


def picture(tokens: int) -> PreparedImage:
    return PreparedImage(f"{tokens}", None, (1, 2, 2 * tokens), tokens, 0, 0)


@pytest.mark.parametrize("ids", [[1, 7, 2, 7, 3], [1, 7, 7, 7, 2, 7, 7, 3], [1, 7, 2, 7, 7, 3]])
def test_a_run_of_placeholders_is_one_image_whether_expanded_or_not(ids):
    prompt = expand_prompt(ids, [picture(3), picture(2)], IMAGE)
    assert prompt.token_ids == (1, 7, 7, 7, 2, 7, 7, 3)
    assert [(span.start, span.count) for span in prompt.spans] == [(1, 3), (5, 2)]


@pytest.mark.parametrize(
    ("ids", "shown"), [([1, 7, 7, 2], [picture(3)]), ([1, 7, 2, 7], [picture(3)]), ([1, 2], [picture(3)])]
)
def test_placeholders_that_do_not_fit_their_images_are_refused(ids, shown):
    with pytest.raises(ValueError, match="image"):
        expand_prompt(ids, shown, IMAGE)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    return areal_models.save_checkpoint(tmp_path_factory.mktemp("serving") / "model", "qwen3_vl")


@pytest_asyncio.fixture
async def serving(checkpoint):
    made = CpuInferenceServer(load(str(checkpoint)), 256)
    transport = httpx2.ASGITransport(app=made.app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://server", timeout=limit(60)) as client:
        yield made, client
    await made.engine.close()


def request(made: CpuInferenceServer, **params: Any) -> dict[str, Any]:
    """What AReaL's SGLang adapter sends."""
    wanted = {
        "top_p": 1.0, "top_k": 100_000_000, "max_new_tokens": 8, "temperature": 1.0, "stop_token_ids": [],
        "ignore_eos": False, "skip_special_tokens": False, "frequency_penalty": 0.0,
    }  # fmt: skip
    ids = [5, made.model.image_token_id, 9, 11]
    return {
        "input_ids": ids, "image_data": [PICTURE], "sampling_params": wanted | params, "return_logprob": True,
        "stream": False,
    }  # fmt: skip


async def test_log_probs_are_of_the_whole_vocabulary(serving):
    made, client = serving
    reply = (await client.post("/generate", json=request(made, max_new_tokens=3))).json()
    scored = reply["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in scored] == reply["output_ids"]
    assert reply["meta_info"]["finish_reason"]["type"] == "length"
    prompt, _ = made._parse(request(made))
    image = prompt.images[prompt.spans[0].sha256]
    row = torch.tensor([[*prompt.token_ids, *reply["output_ids"]]])
    with torch.no_grad():
        logits = made.model.model(
            input_ids=row,
            attention_mask=torch.ones_like(row),
            mm_token_type_ids=(row == made.model.image_token_id).int(),
            pixel_values=torch.from_numpy(np.asarray(image.pixel_values)),
            image_grid_thw=torch.tensor([image.grid_thw]),
        ).logits[0]
    found = torch.log_softmax(logits.float(), -1)[len(prompt.token_ids) - 1 : -1]
    expected = found.gather(1, torch.tensor(reply["output_ids"]).unsqueeze(1)).squeeze(1)
    assert torch.allclose(torch.tensor([entry[0] for entry in scored]), expected, atol=1e-5)


async def test_a_pause_ends_requests_without_tokens_and_holds_new_ones(serving):
    made, client = serving
    long = asyncio.create_task(client.post("/generate", json=request(made, max_new_tokens=200)))
    while not made.engine.in_flight:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await client.post("/pause_generation", json={})
    cut = (await long).json()
    assert cut["output_ids"] == []
    assert cut["meta_info"]["finish_reason"]["type"] == "abort"
    assert cut["meta_info"]["finish_reason"]["message"].startswith("Abort before prefill")
    waiting = asyncio.create_task(client.post("/generate", json=request(made)))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await client.post("/continue_generation", json={})
    assert len((await waiting).json()["output_ids"]) == 8


async def test_weights_are_taken_from_a_folder_and_what_is_no_checkpoint_is_refused(serving, checkpoint, tmp_path):
    made, client = serving
    folder = tmp_path / "update"
    folder.mkdir()
    (folder / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    weights = load_file(checkpoint / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"] + 1.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    reply = await client.post("/update_weights_from_disk", json={"model_path": str(folder), "abort_all_requests": True})
    assert reply.json()["success"] is True
    assert made.engine.version == 1
    assert torch.equal(made.model.model.lm_head.weight, weights["lm_head.weight"])
    (folder / "model.safetensors").write_bytes(b"")
    refused = await client.post("/update_weights_from_disk", json={"model_path": str(folder)})
    assert refused.status_code == 400
    assert str(folder) in refused.json()["message"]
    assert made.engine.version == 1


@pytest.mark.parametrize(
    "params", [{"top_k": 20}, {"frequency_penalty": 0.5}, {"min_p": 0.1}, {"max_new_tokens": 1000}]
)
async def test_what_the_server_does_not_do_is_refused(serving, params):
    made, client = serving
    assert (await client.post("/generate", json=request(made, **params))).status_code == 400
