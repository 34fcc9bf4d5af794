"""An engine whose model lives in a server. Invariant: a call ends with a completion of published weights or with an error in
bounded time; what the server does meanwhile (die, hang, start anew) can cost time and never changes what is recorded.

A watcher asks for the server's health. One of ours that has died, or does not answer for `stall_s`, is killed and started again;
one at an address is waited for. A server that is back gets the last published weights and the name of their version before it is
asked anything, and the calls that were cut off are made again: none of their tokens had been returned, so nothing is
sampled twice. Weights travel as a checkpoint folder that both sides can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from deskhand.engines.http_engine.cancellation import PausableDeadline, cancel_on
from deskhand.engines.http_engine.endpoint import EndpointUnreachable, HttpEndpoint, RequestRejected
from deskhand.engines.http_engine.protocol import RetryRequest, ServerProtocol, StaleWeights
from deskhand.engines.http_engine.server_process import ServerProcess
from deskhand.engines.http_engine.weight_files import write_adapter, write_checkpoint
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.types import Completion, Feature, LoraWeights, Prompt, Sampling

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """How long a server may take, in seconds."""

    start_s: float = 600.0
    """From its start to its first answer (a large checkpoint is read from disk)."""
    outage_s: float = 300.0
    """How long a call waits for a server that is away, all its tries together."""
    request_s: float = 600.0
    """One request that the server is working on."""
    stall_s: float = 60.0
    """Without a sign of health it counts as dead."""
    poll_s: float = 1.0
    tries: int = 4
    """How often one call is made before it is an outage."""
    restarts: int = 5
    """Starts in a row that serve no call before the engine gives up."""


@dataclass(slots=True)
class HttpEngineStats:
    """Counts since the engine started."""

    requests: int = 0
    tries: int = 0
    """Requests that were sent, those that were cut off included."""
    outages: int = 0
    starts: int = 0
    """Times that a server of ours was started."""
    published: int = 0


class HttpEngine:
    """`engines.base.Engine` over a server that speaks `wire`: started and watched by us (`server`) or given (`endpoint`).

    `folder` takes the weights that are published; the server must be able to read it. `version` names the weights that the server
    starts with. Call `start` before anything else.
    """

    def __init__(
        self,
        wire: ServerProtocol,
        folder: Path,
        *,
        server: ServerProcess | None = None,
        endpoint: HttpEndpoint | None = None,
        version: int = 0,
        patience: ServerTimeouts | None = None,
    ) -> None:
        if (server is None) == (endpoint is None):
            raise ConfigError("a served engine needs a server to start or the address of one, not both")
        self.wire, self.folder = wire, folder
        self.patience = patience or ServerTimeouts()
        self.max_tokens = 0
        self.had_other_weights = False
        """Whether a given server had been given weights by another run, or by this one before it was killed."""
        self.stats = HttpEngineStats()
        self._server, self._endpoint = server, endpoint
        self._version = self._wanted_version = version
        self._weights: Path | None = None
        """The checkpoint published last; None while the server's own is in use."""
        self._wanted = self._held = 0
        """Publications: that which the server shall have, and that which it has."""
        self._paused = False
        self._failure: InfrastructureError | None = None
        self._up, self._lost = asyncio.Event(), asyncio.Event()
        """`_up`: the server serves. `_lost`: set, once, when the server that now serves has gone away."""
        self._barren = 0
        self._changing = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def features(self) -> frozenset[Feature]:
        return self.wire.features

    async def start(self) -> None:
        """Wait until the server serves. Raises `ConfigError` when it is of the wrong kind, `InfrastructureError` when it does not
        come."""
        for left in self.folder.glob("version-*"):  # of a run that was killed
            await asyncio.to_thread(shutil.rmtree, left, True)
        try:
            await self._bring_up()
        except BaseException:
            await self.close()
            raise
        self._watcher = asyncio.create_task(self._watch(), name="engine-watcher")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion.

        Output is cut where the server's context ends. Raises `AgentError` when the prompt leaves no room for a token, `RecordError`
        when the server was given other images than the prompt says, `InfrastructureError` for an outage.
        """
        length = len(prompt.token_ids)
        if length >= self.max_tokens:
            raise AgentError(f"prompt of {length} tokens, the engine holds {self.max_tokens}; show fewer screenshots")
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, self.max_tokens - length))
        self.stats.requests += 1
        last: InfrastructureError | None = None
        async with PausableDeadline(self.patience.outage_s) as deadline:
            for _ in range(self.patience.tries):
                lost, endpoint = await self._ready()
                self.stats.tries += 1
                deadline.hold()
                try:
                    done = await cancel_on(
                        lost, self.wire.generate(endpoint, prompt, sampling, self.patience.request_s)
                    )
                    self._barren = 0
                    return done
                except StaleWeights as error:
                    last = error
                    self._declare_lost(lost, str(error))
                except RetryRequest as error:
                    last = error
                except EndpointUnreachable as error:
                    last = error
                    await self._confirm(lost, endpoint)
                except RequestRejected as error:
                    if error.status < 500:
                        raise
                    last = error
                    await self._confirm(lost, endpoint)
                finally:
                    deadline.release()
        raise InfrastructureError(
            f"{self.wire.name} did not serve a request within {self.patience.outage_s:g} s: {last or 'it is away'}"
        )

    @property
    def supports_lora(self) -> bool:
        return self.wire.supports_lora

    @property
    def supports_vision_lora(self) -> bool:
        return self.wire.supports_vision_lora

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Write the weights (torch tensors by state-dict names) as a checkpoint and have the server load it between two steps.

        A server that is away gets them when it is back. Raises `InfrastructureError` when it refuses them or does not come back in
        time.
        """
        await self._publish(version, lambda folder: write_checkpoint(folder, weights))

    async def update_lora(self, version: int, adapter: LoraWeights) -> None:
        """As `publish`, for an adapter over the weights that the server was started with."""
        await self._publish(version, lambda folder: write_adapter(folder, adapter))

    async def load_checkpoint(self, version: int, checkpoint: Path) -> None:
        """As `publish`, for a checkpoint that lies on disk already, which stays there."""
        async with self._changing:
            await self._give(version, checkpoint)

    async def _publish(self, version: int, write: Callable[[Path], None]) -> None:
        async with self._changing:
            target = self.folder / f"version-{version}"
            await asyncio.to_thread(write, target)
            await self._give(version, target)

    async def _give(self, version: int, target: Path) -> None:
        former, self._weights, self._wanted_version = self._weights, target, version
        self._wanted += 1
        while True:
            lost, endpoint = await self._ready_in_time()
            if self._held == self._wanted:
                break
            try:
                await cancel_on(lost, self._load(endpoint))
            except EndpointUnreachable as error:
                self._declare_lost(lost, str(error))
            except RequestRejected as error:
                self._declare_lost(lost, str(error))
                raise
        self.stats.published += 1
        if former != target:
            await self._discard(former)

    async def _discard(self, weights: Path | None) -> None:
        """Delete weights that were written for the server."""
        if weights is not None and weights.parent == self.folder:
            await asyncio.to_thread(shutil.rmtree, weights, True)

    async def pause(self) -> None:
        """Requests in flight keep their place and wait."""
        await self._set_paused(True)

    async def resume(self) -> None:
        await self._set_paused(False)

    async def _set_paused(self, paused: bool) -> None:
        async with self._changing:
            self._paused = paused
            _, endpoint = await self._ready_in_time()
            await (self.wire.pause(endpoint) if paused else self.wire.resume(endpoint))

    async def close(self) -> None:
        """End the server if it is ours. Calls in flight fail with `InfrastructureError`."""
        self._fail(InfrastructureError("the engine is closed; start another"))
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._server is not None:
            await self._server.end()
        await self._discard(self._weights)

    async def _ready(self) -> tuple[asyncio.Event, HttpEndpoint]:
        """The server that serves, once there is one."""
        await self._up.wait()
        if self._failure is not None:
            raise InfrastructureError(str(self._failure))
        assert self._endpoint is not None
        return self._lost, self._endpoint

    async def _ready_in_time(self) -> tuple[asyncio.Event, HttpEndpoint]:
        try:
            async with asyncio.timeout(self.patience.outage_s):
                return await self._ready()
        except TimeoutError:
            raise InfrastructureError(f"{self.wire.name} was away for {self.patience.outage_s:g} s") from None

    async def _bring_up(self) -> None:
        """Start the server if it is ours, wait for it, and give it what it must have."""
        if self._server is not None:
            if self._endpoint is not None:
                await self._endpoint.close()
            self._endpoint = await self._server.start()
            self.stats.starts = self._server.starts
        assert self._endpoint is not None
        endpoint = self._endpoint
        await self._answers(endpoint)
        self.max_tokens = await self.wire.inspect(endpoint)
        self.wire.forget()
        if self._weights is not None:
            await self._load(endpoint)
        elif (label := await self.wire.label(endpoint)) != str(self._version):
            self.had_other_weights = label.isdecimal() and label != "0"
            await self.wire.set_label(endpoint, str(self._version))
        if self._paused:
            await self.wire.pause(endpoint)
        self._lost = asyncio.Event()
        self._up.set()

    async def _load(self, endpoint: HttpEndpoint) -> None:
        assert self._weights is not None
        wanted, version = self._wanted, self._wanted_version
        await self.wire.load(endpoint, self._weights, str(version))
        self.wire.forget()
        self._held, self._version = wanted, version
        if not self._paused:
            await self.wire.resume(endpoint)

    async def _answers(self, endpoint: HttpEndpoint) -> None:
        """Wait until a starting server is healthy."""
        clock = asyncio.get_running_loop().time
        end = clock() + self.patience.start_s
        while True:
            try:
                return await self.wire.healthy(endpoint, min(5.0, self.patience.stall_s))
            except InfrastructureError as error:
                if self._server is not None and (how := self._server.ended):
                    words = f"{self._server.log} ends with: {self._server.last_words()}"
                    raise InfrastructureError(f"{self.wire.name} did not start: {how}; {words}") from None
                if clock() > end:
                    raise InfrastructureError(
                        f"{self.wire.name} did not start in {self.patience.start_s:g} s: {error}"
                    ) from None
            await asyncio.sleep(min(self.patience.poll_s, 0.5))

    async def _watch(self) -> None:
        """Look after the server until the engine is closed or given up."""
        unwell = ""
        try:
            while self._failure is None:
                await self._until_lost()
                self._up.clear()
                self._held = -1
                self.stats.outages += 1
                self._barren += 1
                how = (
                    self._server.ended if self._server is not None else None
                ) or "it did not answer, or was started anew"
                if self._barren > self.patience.restarts:
                    place = f"; its log is {self._server.log}" if self._server is not None else ""
                    self._fail(
                        InfrastructureError(
                            f"{self.wire.name} went away {self._barren} times in a row ({unwell or how}){place}"
                        )
                    )
                    return
                log.warning("engine.away", server=self.wire.name, how=how)
                try:
                    await self._bring_up()
                    unwell = ""
                    log.warning("engine.back", server=self.wire.name, version=self._version)
                except InfrastructureError as error:
                    unwell = str(error)
                    log.warning("engine.unwell", server=self.wire.name, message=unwell)
                    await asyncio.sleep(self.patience.poll_s)
        except Exception as error:  # whatever ends the watcher, no caller may be left waiting for it
            self._fail(InfrastructureError(f"{self.wire.name} is no longer looked after: {error}"))

    async def _until_lost(self) -> None:
        """Return when the server has gone away."""
        clock = asyncio.get_running_loop().time
        seen = clock()
        while not self._lost.is_set():
            assert self._endpoint is not None
            if self._server is not None and self._server.ended:
                break
            try:
                await self.wire.healthy(self._endpoint, min(self.patience.stall_s, 10.0))
                seen = clock()
            except InfrastructureError:
                if clock() - seen > self.patience.stall_s:
                    break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience.poll_s):
                    await self._lost.wait()
        self._lost.set()

    async def _confirm(self, lost: asyncio.Event, endpoint: HttpEndpoint) -> None:
        """After a call broke off: was it the server? One that is healthy lost only that connection."""
        try:
            await cancel_on(lost, self.wire.healthy(endpoint, min(self.patience.stall_s, 10.0)))
        except InfrastructureError as error:
            self._declare_lost(lost, str(error))

    def _declare_lost(self, lost: asyncio.Event, why: str) -> None:
        if lost is self._lost and not lost.is_set():
            log.warning("engine.lost", server=self.wire.name, message=why)
            self._up.clear()
            lost.set()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or InfrastructureError(str(error))
        self._lost.set()
        self._up.set()
