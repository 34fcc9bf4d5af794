"""One AReaL executor on many desktops of a bridge: `python -m benchmarks.areal_leases [--full]`.

Everything is real but desktops and model: desktops are prepared screens, and the inference server answers each request after
`LATENCY_S` with the same action. So what is measured is leases, the bridge, our workflow inside AReaL's executor, and the
recorder. Groups of eight; as many at a time as there are desktops for. Needs AReaL's environment (`scripts/environment areal`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics

import numpy as np
import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.areal.executor import GROUP, HEIGHT, STEPS, WIDTH
from benchmarks.thresholds import ROOT, Bars, print_head
from deskhand.actions.ops import Op
from deskhand.desktop import host_capacity
from deskhand.desktop.base import DesktopSpec, Frame, StageableDesktop
from deskhand.desktop.pool import DesktopPool
from deskhand.integrations.areal.launcher import areal_python, worker_environment
from deskhand.models.load import load_processors
from deskhand.server.process import ServerConfig, serve_pool

LATENCY_S = 0.5
WAIT_P50_S = 1.0
SCREEN = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)
SCREEN.flags.writeable = False


class Prepared:
    """A desktop whose screen is ready. It has what the benchmark uses of one."""

    def __init__(self) -> None:
        self._sequence = 0

    async def reset(self, template: DesktopSpec) -> Frame:
        return await self.observe()

    async def observe(self) -> Frame:
        self._sequence += 1
        return Frame(SCREEN, self._sequence, "screen", 0.0, "quiet", (0, 0, 1, 1), (0, 0))

    async def perform(self, ops: list[Op], *, action_id: str) -> Frame:
        return await self.observe()

    async def close(self) -> None:
        return


def prepared() -> StageableDesktop:
    desktop: object = Prepared()
    return desktop  # pyright: ignore[reportReturnType]


def answering() -> Starlette:
    """SGLang's protocol, as far as one request needs it."""
    tokenizer, _ = load_processors("tiny")
    ids = [*tokenizer.encode('{"op":"click","x":512,"y":300}', add_special_tokens=False), tokenizer.eos_token_id]
    scored = [[-1.0, token, None] for token in ids]
    meta = {"finish_reason": {"type": "stop", "matched": ids[-1]}, "output_token_logprobs": scored}

    async def generate(request: Request) -> Response:
        await request.body()
        await asyncio.sleep(LATENCY_S)
        return JSONResponse({"text": "", "output_ids": ids, "meta_info": meta})

    async def health(request: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/health", health), Route("/generate", generate, methods=["POST"])])


async def play(desktops: int, rounds: int) -> dict[str, float]:
    """`rounds` times as many episodes as desktops; what was measured."""
    # prepared screens take no processor to start, and no memory of their own
    host_capacity.MAX_DESKTOPS_PER_CORE, host_capacity.SHARED_MEMORY_MIB = desktops, 1
    template = DesktopSpec(width=WIDTH, height=HEIGHT)
    server = uvicorn.Server(uvicorn.Config(answering(), host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    serve = asyncio.create_task(server.serve())
    while not (server.started and server.servers):  # noqa: ASYNC110 uvicorn has no event for it
        await asyncio.sleep(0.01)
    model = f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with (
        DesktopPool(desktops, template, prewarm=0, make=prepared, memory_request_mib=1) as pool,
        serve_pool(pool, ServerConfig(port=0, idle_s=3600)) as running,
    ):
        python = areal_python(os.environ)
        words = ["-m", "benchmarks.areal.executor", f"http://127.0.0.1:{running.port}", model, str(desktops)]
        child = await asyncio.create_subprocess_exec(
            str(python), *words, str(rounds * desktops // GROUP), cwd=ROOT, env=worker_environment(python, os.environ),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        out, _ = await child.communicate()
        left = len(list(running.book))
    server.should_exit = True
    await serve
    said = json.loads(out.decode().splitlines()[-1])
    waits = said["waits"]
    return {
        "episodes": len(waits),
        "groups": said["groups"],
        "per_s": len(waits) / said["seconds"],
        "p50": statistics.median(waits),
        "p99": statistics.quantiles(waits, n=100)[98],
        "left": left,
    }


async def measure(sizes: list[int], rounds: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    bars = Bars()
    print_head()
    for desktops in sizes:
        found = await play(desktops, rounds)
        expected = rounds * desktops
        most = desktops / (STEPS * LATENCY_S)
        pace = f"{found['per_s']:.1f} a second (the model's latency alone allows {most:.1f})"
        waits = f"wait for a lease p50 {found['p50']:.3f} s, p99 {found['p99']:.3f} s"
        print(f"{desktops} desktops: {found['episodes']:.0f} episodes of {STEPS} steps, {pace}, {waits}", flush=True)
        bars.check(
            f"{desktops}: wait for a lease, p50",
            found["p50"] <= WAIT_P50_S,
            f"{found['p50']:.3f} s",
            f"<= {WAIT_P50_S:g} s",
        )
        bars.check(f"{desktops}: leases given back", found["left"] == 0, f"{found['left']:.0f} left", "0 left")
        whole = found["episodes"] == expected and found["groups"] == expected // GROUP
        bars.check(
            f"{desktops}: every group arrived", whole, f"{found['groups']:.0f} groups", f"{expected // GROUP} groups"
        )
    bars.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--full", action="store_true", help="32, 128 and 512 desktops, two episodes on each; else 16, one on each"
    )
    asyncio.run(measure([32, 128, 512], 2) if parser.parse_args().full else measure([16], 1))


if __name__ == "__main__":
    main()
