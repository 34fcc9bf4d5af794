"""Runs in AReaL's own environment: our plain agent on real embedded desktops behind AReaL's real proxy.

`python proxy_probe.py CHECKPOINT ADDRESS OUT_FOLDER`: the proxy's application is set up by the same HTTP calls as
AReaL's scheduler makes; AReaL's workflow executor runs its `OpenAIProxyWorkflow` with our agent, singly and in groups.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx2
import torch
from patience import limit

from deskhand.integrations.areal import installed_areal

torch.set_num_threads(1)
KEY = "an-admin-key-of-this-test"


def served(app: Any, lifespan: Any = "off") -> str:
    """The address of an application in a thread."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan=lifespan))
    threading.Thread(target=server.run, daemon=True).start()
    while not (server.started and server.servers):
        time.sleep(0.01)
    return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def config_of(checkpoint: str, style: str) -> Any:
    from areal.api.cli_args import AgentConfig, InferenceEngineConfig

    agent = AgentConfig(
        agent_cls_path="deskhand.integrations.areal.agent.OSWorldAgent",
        mode="inline",
        admin_api_key=KEY,
        export_style=style,
        chat_template_type="concat" if style == "concat" else "hf",
        turn_discount=1.0,
    )
    return InferenceEngineConfig(
        experiment_name="contract", trial_name="proxy", backend="sglang:d1p1t1", max_concurrent_rollouts=2,
        consumer_batch_size=4, max_head_offpolicyness=100, tokenizer_path=checkpoint, setup_timeout=limit(60),
        request_timeout=limit(300), agent=agent,
    )  # fmt: skip


def proxy(checkpoint: str, address: str, style: str) -> tuple[Any, str]:
    """AReaL's proxy, configured as its scheduler does it; returns its module and address."""
    from areal.experimental.openai.proxy import proxy_rollout_server as module
    from areal.infra.rpc.serialization import serialize_value

    module._engine, module._server_host = None, "127.0.0.1"
    if installed_areal.exports_images("sglang"):
        module.load_hf_processor_and_tokenizer = hf_processor
    at = served(module.app)
    engine = "areal.engine.sglang_remote.RemoteSGLangEngine"
    made = {"engine": engine, "init_kwargs": serialize_value({"config": config_of(checkpoint, style)})}
    httpx2.post(f"{at}/create_engine", json=made, timeout=limit(60)).raise_for_status()
    call = {"method": "initialize", "args": serialize_value([]), "kwargs": serialize_value({"addr": address})}
    httpx2.post(f"{at}/call", json=call, timeout=limit(60)).raise_for_status()
    return module, at


def hf_processor(checkpoint: str) -> tuple[Any, Any]:
    """Stands in for transformers' processor of Qwen-VL, which needs torchvision for videos: its image processor and its
    tokenizer, put together as it does it."""
    from deskhand.models.load import load_processors

    tokenizer, images = load_processors(checkpoint)

    class Processor:
        image_processor = images

        def __call__(self, text: list[str], images: list[Any], **named: Any) -> dict[str, Any]:
            found = dict(self.image_processor(images=images, return_tensors="pt"))
            counts = [int(grid.prod()) // self.image_processor.merge_size**2 for grid in found["image_grid_thw"]]
            head, *rest = text[0].split("<|image_pad|>")
            assert len(rest) == len(counts)
            filled = head + "".join("<|image_pad|>" * count + after for count, after in zip(counts, rest, strict=True))
            ids = tokenizer(filled, return_tensors="pt", add_special_tokens=False)["input_ids"]
            types = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).long()
            return {"input_ids": ids, "mm_token_type_ids": types, **found}

    return Processor(), tokenizer


def gaps(checkpoint: str, rows: dict[str, Any]) -> list[float]:
    """The largest difference between recorded and recomputed log-probs, with the exported images and with noise in
    their place."""
    from transformers import AutoModelForImageTextToText

    from deskhand.integrations.areal.patches.model import patch_rope_positions

    patch_rope_positions()
    model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32).eval()
    worst = [0.0, 0.0]
    for number, images in enumerate(rows["multi_modal_input"]):
        length = int(rows["attention_mask"][number].sum())
        names = ("input_ids", "attention_mask", "mm_token_type_ids")
        given = {name: rows[name][number : number + 1, :length].long() for name in names}
        mask = rows["loss_mask"][number, 1:length].bool()
        for place, pixels in enumerate((images["pixel_values"], torch.rand_like(images["pixel_values"]))):
            with torch.no_grad():
                logits = model(**given, image_grid_thw=images["image_grid_thw"], pixel_values=pixels).logits[0, :-1]
            taken = logits.log_softmax(-1).gather(1, given["input_ids"][0, 1:, None])[:, 0]
            gap = float((taken - rows["logprobs"][number, 1:length])[mask].abs().max())
            worst[place] = max(worst[place], gap)
    return worst


def play(
    checkpoint: str,
    address: str,
    style: str,
    agent: Any,
    rows: list[dict[str, Any]],
    group: int,
    whole: dict[str, Any] | None = None,
) -> list[Any]:
    """The shapes of what was exported for each row; `whole` gets the tensors of the first."""
    from areal.engine.sglang_remote import RemoteSGLangEngine

    module, at = proxy(checkpoint, address, style)
    engine = RemoteSGLangEngine(config_of(checkpoint, style))
    engine.initialize(addr=address)
    try:
        for row in rows:
            engine.submit(row, workflow=agent, group_size=group, proxy_addr=at)
        found = engine.wait(len(rows), timeout=limit(280))
    finally:
        engine.destroy()
        module._engine.destroy()
    if whole is not None:
        whole |= found[0]
    return [
        None if one is None else {key: list(getattr(value, "shape", ())) for key, value in one.items()} for one in found
    ]


def main(checkpoint: str, address: str, out: Path) -> None:
    import areal_agents

    began = time.monotonic()
    found: dict[str, Any] = {}
    rows = [{"family": "calculator_number", "seed": seed} for seed in (3, 4)]
    settings = {"model": checkpoint, "desktops": {"local": 2}}
    settings["agent"] = {"max_new_tokens": 32, "max_consecutive_errors": 6}
    whole: dict[str, Any] = {}
    found["individual"] = play(checkpoint, address, "individual", areal_agents.Watched(settings), rows, 1, whole)
    found["exports_images"] = installed_areal.exports_images("sglang")
    found["version"] = installed_areal.version()
    found["gaps"] = gaps(checkpoint, whole) if "multi_modal_input" in whole else None
    found["rewards"] = list(areal_agents.Watched.rewards)
    found["concat"] = play(checkpoint, address, "concat", areal_agents.Watched(settings), rows[:1], 1)
    found["group"] = play(checkpoint, address, "individual", areal_agents.Watched(settings), rows[:1], 2)
    found["failing"] = play(checkpoint, address, "individual", areal_agents.Failing(settings), rows[:1], 1)
    found["failing_group"] = play(checkpoint, address, "individual", areal_agents.FailingSecond(settings), rows[:1], 2)
    found["late"] = play(checkpoint, address, "individual", areal_agents.Late(settings), rows[:1], 1)
    found["subproc"] = subproc(checkpoint, address, areal_agents.Watched(settings), rows[0])
    found["online"] = online(checkpoint, address, areal_agents.FailingSecond(settings), [*rows, *rows][:3])
    found["habits"] = habits(checkpoint, address, out)
    found["seconds"] = time.monotonic() - began
    (out / "found.json").write_text(json.dumps(found))


def subproc(checkpoint: str, address: str, agent: Any, row: dict[str, Any]) -> float:
    """What AReaL does in its subproc mode: a pickled agent in another process, told by its environment where the model
    is."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    from areal.experimental.openai.proxy.client_session import OpenAIProxyClient
    from areal.experimental.openai.proxy.workflow import _wrap_run

    module, at = proxy(checkpoint, address, "individual")

    async def run() -> float:
        async with import_module("aiohttp").ClientSession() as session:
            headers = {"authorization": f"Bearer {KEY}"}
            async with session.post(f"{at}/grant_capacity", headers=headers) as reply:
                reply.raise_for_status()
            async with OpenAIProxyClient(session=session, base_url=at, task_id="7", admin_api_key=KEY) as client:
                told = {"OPENAI_BASE_URL": at, "OPENAI_API_KEY": client.session_api_key}
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    return await asyncio.get_running_loop().run_in_executor(pool, _wrap_run, agent, row, told)

    try:
        return asyncio.run(run())
    finally:
        module._engine.destroy()


def habits(checkpoint: str, address: str, out: Path) -> dict[str, Any]:
    """Clients and judges inside of an episode of AReaL's executor."""
    from areal.api.reward_api import AsyncRewardWrapper
    from areal.engine.sglang_remote import RemoteSGLangEngine
    from areal_client_workflow import Habits

    engine = RemoteSGLangEngine(config_of(checkpoint, "individual"))
    engine.initialize(addr=address)
    try:
        engine.submit({"folder": str(out)}, workflow=Habits())
        engine.wait(1, timeout=limit(60))
    finally:
        engine.destroy()
        AsyncRewardWrapper._atexit_shutdown_all()  # this program ends without its atexit
    return Habits.found


async def playing(agent: Any, rows: list[dict[str, Any]], gateway: Any) -> Any:
    from deskhand.integrations.areal.online import run_online
    from deskhand.integrations.areal.worker_resources import use_worker_resources

    async with use_worker_resources(agent.settings, keep=False):
        return await run_online(agent, rows, gateway)


def online(checkpoint: str, address: str, agent: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """AReaL's gateway and its workflow of the online mode, and our player in front of them, as another program would
    be."""
    from areal.engine.sglang_remote import RemoteSGLangEngine
    from areal.experimental.openai.proxy.proxy_gateway import create_proxy_gateway_app
    from areal.experimental.openai.proxy.workflow import OpenAIProxyWorkflow

    from deskhand.integrations.areal.online import ProxyGateway

    module, at = proxy(checkpoint, address, "individual")
    gateway = ProxyGateway(served(create_proxy_gateway_app([at], admin_api_key=KEY), "on"), KEY)
    engine = RemoteSGLangEngine(config_of(checkpoint, "individual"))
    engine.initialize(addr=address)
    try:
        for _ in rows:
            workflow = OpenAIProxyWorkflow(
                "online", proxy_addr=at, admin_api_key=KEY, proxy_gateway_addr=gateway.address
            )
            engine.submit({}, workflow=workflow, should_accept_fn="deskhand.integrations.areal.online.is_scored")
        played = asyncio.run(playing(agent, rows, gateway))
        taken = [one for one in engine.wait(len(rows), timeout=limit(120)) if one is not None]
    finally:
        engine.destroy()
        module._engine.destroy()
    finite = [reward for one in taken for reward in one["rewards"].tolist()]
    return {"scored": played.rewards, "unscored": played.errors, "taken": len(taken), "rewards": finite}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    os._exit(0)
