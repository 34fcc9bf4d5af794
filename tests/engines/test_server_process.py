"""A server process may die, hang or start slowly; a call returns a completion of published weights or fails in time."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from patience import limit
from recording import png
from safetensors.torch import save_file

from deskhand.engines.http_engine.endpoint import HttpEndpoint
from deskhand.engines.http_engine.engine import HttpEngine, ServerTimeouts
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.server_process import ServerProcess
from deskhand.engines.vllm.vllm_protocol import VllmProtocol
from deskhand.errors import AgentError, ConfigError, InfrastructureError, RecordError
from deskhand.models.load import TINY_FOLDER
from deskhand.recorder.images import ImageCache
from deskhand.types import ImageSpan, Prompt, Sampling

FAKE = Path(__file__).parent.parent / "support" / "fake_vllm.py"
PLACEHOLDER, STOP = 1400, 1397
QUICK = ServerTimeouts(start_s=20, outage_s=20, request_s=20, stall_s=1.0, poll_s=0.05, tries=4, restarts=2)


@pytest.fixture(scope="module")
def processor() -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil.from_pretrained(TINY_FOLDER)


class Bench:
    """Makes engines on the stand-in server, and prompts for them."""

    def __init__(self, folder: Path, processor: Any) -> None:
        self.folder, self.images = folder, ImageCache(processor)
        self.processor = processor
        self.engines: list[HttpEngine] = []
        (folder / "model").mkdir()
        save_file({"w": torch.zeros(1)}, folder / "model" / "model.safetensors")

    def server(self, **settings: str) -> ServerProcess:
        def command(socket: str) -> list[str]:
            return [sys.executable, str(FAKE), "--model", str(self.folder / "model"), "--uds", socket]

        return ServerProcess(command, {"PATH": os.environ["PATH"], **settings}, self.folder / "server.log")

    async def engine(self, patience: ServerTimeouts = QUICK, version: int = 0, **settings: str) -> HttpEngine:
        server = self.server(**settings)
        wire, folder = VllmProtocol(ImageEncoder(self.processor)), self.folder / "weights"
        made = HttpEngine(wire, folder, server=server, version=version, patience=patience)
        self.engines.append(made)
        await made.start()
        return made

    def prompt(self, *seeds: int) -> Prompt:
        """Text and one picture for each seed; of different sizes."""
        ids: list[int] = [1, 2, 3]
        spans, held = [], {}
        for seed in seeds:
            image = self.images.add(png(seed, 64 + 32 * (seed % 3), 64))
            spans.append(ImageSpan(len(ids), image.tokens, image.sha256))
            held[image.sha256] = image
            ids += [PLACEHOLDER] * image.tokens + [5, 6]
        return Prompt(tuple(ids), tuple(spans), held)


@pytest.fixture
async def bench(tmp_path: Path, processor: Any) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, processor)
    yield made
    for engine in made.engines:
        await engine.close()


def long(tokens: int = 100, seed: int = 0) -> Sampling:
    return Sampling(tokens, banned_ids=(PLACEHOLDER,), seed=seed)


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1,), value)}


def kill(engine: HttpEngine, number: int = signal.SIGKILL, **settings: str) -> None:
    """Send a signal to the engine's server; `settings` are those of the next one."""
    assert engine._server is not None
    assert engine._server.pid is not None
    engine._server._environment |= settings
    os.kill(engine._server.pid, number)


async def until(condition: Any) -> None:
    async with asyncio.timeout(limit(20)):
        while not condition():  # noqa: ASYNC110 - the condition is the state of another process
            await asyncio.sleep(0.01)


async def test_ids_images_and_versions_come_back_as_they_were_served(bench: Bench) -> None:
    engine = await bench.engine(version=3)
    prompt = bench.prompt(1, 2, 1)
    done = await engine.generate(prompt, long(20))
    assert done.served_ids == prompt.token_ids
    assert done.versions == (3,) * 20
    assert (len(done.token_ids), done.finish_reason, done.exact) == (20, "length", True)
    assert PLACEHOLDER not in done.token_ids
    other = await engine.generate(bench.prompt(1, 2, 4), long(20))
    assert other.token_ids != done.token_ids, "the pictures count"
    assert (await engine.generate(prompt, long(20))).token_ids == done.token_ids, (
        "also when they are named by their hashes"
    )
    assert engine.stats.tries == 3


async def test_images_are_sent_once_and_again_after_the_server_evicted_them(bench: Bench) -> None:
    engine = await bench.engine(FAKE_IMAGES="2")
    prompts = [bench.prompt(1, 2), bench.prompt(3, 4)]
    first = [await engine.generate(prompt, long(5)) for prompt in prompts]
    again = [await engine.generate(prompt, long(5)) for prompt in prompts]
    assert [done.token_ids for done in again] == [done.token_ids for done in first]
    assert engine.stats.tries == 6, "two requests were made once more, with all their pictures"


async def test_ids_that_were_expanded_twice_are_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "deskhand.engines.vllm.vllm_protocol.collapse_placeholders", lambda prompt: list(prompt.token_ids)
    )
    engine = await bench.engine()
    prompt = bench.prompt(1)
    done = await engine.generate(prompt, long(3))
    assert len(done.served_ids) > len(prompt.token_ids), "the recorder compares the two and stops the session"


async def test_images_in_another_place_than_the_prompt_says_are_noticed(bench: Bench) -> None:
    """Two pictures side by side, changed for one another: the ids alone would not tell."""
    engine = await bench.engine()
    prompt = bench.prompt(1, 2)
    (small, large), held = prompt.spans, prompt.images
    ids = (1, 2, 3, *(PLACEHOLDER,) * (small.count + large.count), 4)
    middle = 3 + small.count
    spans = (ImageSpan(3, small.count, large.sha256), ImageSpan(middle, large.count, small.sha256))
    with pytest.raises(RecordError, match="placeholders"):
        await engine.generate(Prompt(ids, spans, held), long(3))


async def test_a_killed_server_is_restarted_and_its_requests_are_repeated(bench: Bench) -> None:
    engine = await bench.engine(FAKE_TOKEN_S="0.01")
    expected = await engine.generate(bench.prompt(1), long(30))
    await engine.update_weights(7, weights(1))
    published = await engine.generate(bench.prompt(1), long(30))
    assert published.token_ids != expected.token_ids
    calls = [asyncio.create_task(engine.generate(bench.prompt(seed), long(60))) for seed in range(1, 4)]
    await asyncio.sleep(0.2)
    kill(engine)
    done = await asyncio.gather(*calls)
    assert all(one.versions == (7,) * 60 for one in done)
    assert (await engine.generate(bench.prompt(1), long(30))).token_ids == published.token_ids, (
        "the published weights were given back"
    )
    assert (engine.stats.starts, engine.stats.outages) == (2, 1)


async def test_a_server_that_hangs_counts_as_dead(bench: Bench) -> None:
    engine = await bench.engine(FAKE_TOKEN_S="0.01")
    call = asyncio.create_task(engine.generate(bench.prompt(1), long(60)))
    await asyncio.sleep(0.1)
    kill(engine, signal.SIGSTOP)
    assert len((await call).token_ids) == 60
    assert engine.stats.starts == 2


async def test_weights_published_in_an_outage_arrive_with_the_next_server(bench: Bench) -> None:
    engine = await bench.engine(FAKE_START_S="0.3")
    kill(engine)
    await until(lambda: engine.stats.outages)
    await engine.update_weights(4, weights(2))
    assert (await engine.generate(bench.prompt(1), long(5))).versions == (4,) * 5


async def test_requests_in_flight_continue_with_new_weights_and_report_a_version_per_token(bench: Bench) -> None:
    engine = await bench.engine(FAKE_TOKEN_S="0.01")
    call = asyncio.create_task(engine.generate(bench.prompt(1), long(60)))
    await asyncio.sleep(0.2)
    await engine.update_weights(1, weights(1))
    assert engine.version == 1
    done = await call
    switch = done.versions.index(1)
    assert 0 < switch < 60
    assert done.versions == (0,) * switch + (1,) * (60 - switch)
    assert engine.stats.tries == 1
    await engine.update_weights(2, weights(2))
    assert [path.name for path in engine.folder.iterdir()] == ["version-2"], "what no server needs is deleted"


async def test_a_paused_engine_waits_and_a_publication_does_not_wake_it(bench: Bench) -> None:
    engine = await bench.engine()
    await engine.pause()
    call = asyncio.create_task(engine.generate(bench.prompt(), long(5)))
    await engine.update_weights(1, weights(1))
    await asyncio.sleep(0.2)
    assert not call.done()
    await engine.resume()
    assert (await call).versions == (1,) * 5


async def test_a_server_that_cannot_start_is_an_error_with_its_last_output(bench: Bench) -> None:
    with pytest.raises(
        InfrastructureError, match=r"it exited with code 3; .*server\.log ends with: the graphics card is on fire"
    ):
        await bench.engine(FAKE_DIE="3")
    with pytest.raises(
        ConfigError, match=r"log-probs mode is raw_logprobs; start vLLM with --logprobs-mode processed_logprobs"
    ):
        await bench.engine(FAKE_LOGPROBS="raw_logprobs")


async def test_a_cpu_server_without_the_worker_extension_accepts_no_weights(bench: Bench) -> None:
    engine = await bench.engine(FAKE_DEVICE="cpu")
    with pytest.raises(ConfigError, match=r"keeps the old weights of a tied output layer; set engine\.venv_python"):
        await engine.update_weights(1, weights(1))


async def test_a_server_that_dies_repeatedly_is_given_up(bench: Bench) -> None:
    engine = await bench.engine()
    kill(engine, FAKE_DIE="1")
    for call in (engine.generate(bench.prompt(), long(5)), engine.update_weights(1, weights(1)), engine.pause()):
        with pytest.raises(InfrastructureError, match="was lost 3 times in a row"):
            await call


async def test_a_call_does_not_wait_longer_than_it_may(bench: Bench) -> None:
    patience = ServerTimeouts(start_s=20, outage_s=0.5, stall_s=1.0, poll_s=0.05)
    engine = await bench.engine(patience)
    kill(engine, FAKE_START_S="15")
    async with asyncio.timeout(limit(5)):
        with pytest.raises(InfrastructureError, match=r"did not serve a request within 0\.5 s"):
            await engine.generate(bench.prompt(), long(5))
        with pytest.raises(InfrastructureError, match=r"was unreachable for 0\.5 s"):
            await engine.update_weights(1, weights(1))


async def test_no_server_outlives_its_engine(bench: Bench) -> None:
    engine = await bench.engine()
    assert engine._server is not None
    assert engine._server.pid is not None
    process, folder = psutil.Process(engine._server.pid), engine._server._folder
    assert os.stat(folder).st_mode & 0o077 == 0, "nobody else can enter the folder of the socket"
    await engine.close()
    assert not process.is_running()
    assert folder not in glob.glob(f"{folder}*")
    with pytest.raises(InfrastructureError, match="closed"):
        await engine.generate(bench.prompt(), long(5))


STARTER = """
import subprocess, sys, time
print(subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=2).pid, flush=True)
time.sleep(60)
"""


async def test_a_server_ends_when_its_parent_is_killed(bench: Bench) -> None:
    socket = bench.folder / "socket"
    words = bench.server()._command(str(socket))
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert starter.stdout is not None
    child = psutil.Process(int(await starter.stdout.readline()))
    await until(socket.exists)
    starter.kill()
    await starter.wait()
    await until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


async def test_a_prompt_that_does_not_fit_is_an_agent_error(bench: Bench) -> None:
    engine = await bench.engine()
    with pytest.raises(AgentError, match="prompt of 2048 tokens exceeds the context length 2048"):
        await engine.generate(Prompt((1,) * 2048), long(5))
    done = await engine.generate(Prompt((1,) * 2040), long(50))
    assert (len(done.token_ids), done.finish_reason) == (8, "length")


async def test_a_running_server_that_lost_its_weights_gets_them_again(bench: Bench) -> None:
    server = bench.server()
    endpoint = await server.start()
    wire = VllmProtocol(ImageEncoder(bench.processor))
    engine = HttpEngine(
        wire, bench.folder / "weights", endpoint=HttpEndpoint("http://e", socket=endpoint.name[5:]), patience=QUICK
    )
    bench.engines.append(engine)
    try:
        await engine.start()
        await engine.update_weights(5, weights(1))
        before = await engine.generate(bench.prompt(1), long(5))
        # Somebody starts the server anew, at the same address.
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.exit_reason)
        socket = endpoint.name[5:]
        os.unlink(socket)
        other = await asyncio.create_subprocess_exec(*server._command(socket), stdin=asyncio.subprocess.PIPE)
        try:
            after = await engine.generate(bench.prompt(1), long(5))
            assert (after.token_ids, after.versions) == (before.token_ids, (5,) * 5)
        finally:
            other.kill()
            await other.wait()
    finally:
        await server.stop()
