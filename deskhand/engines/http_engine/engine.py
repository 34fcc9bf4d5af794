"""Engine over an HTTP server, started by Deskhand or already running.

Built by `engines.vllm` and `sglang_protocol`; call `HttpEngine.start` first. A watcher polls the server's health. A
server process that died or did not answer for `stall_s` seconds is restarted; an external server is waited for. A
recovered server gets the last published weights and their version before any request; interrupted calls, which returned
no tokens, are repeated. Weights are passed as a checkpoint folder that both sides can read.

Invariant: in bounded time a call returns a completion of published weights or raises an error.
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

from deskhand.engines.http_engine.endpoint import (
    EndpointUnreachable,
    HttpEndpoint,
    RequestRejected,
    cancel_on,
    check_url,
)
from deskhand.engines.http_engine.image_encoding import ImageEncoder
from deskhand.engines.http_engine.protocol import RetryRequest, ServerProtocol, StaleWeights
from deskhand.engines.http_engine.server_process import ServerProcess
from deskhand.engines.http_engine.weight_files import write_adapter, write_checkpoint
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.types import Completion, Feature, LoraWeights, Prompt, Sampling

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """Time limits in seconds, and retry limits."""

    start_s: float = 600.0
    """From the start to the first answer, including reading a checkpoint from disk."""
    outage_s: float = 300.0
    """Total waiting time of a call for an unreachable server."""
    request_s: float = 600.0
    """Time limit of one request."""
    stall_s: float = 60.0
    """Time without a successful health check after which the server counts as dead."""
    poll_s: float = 1.0
    tries: int = 4
    """Maximum attempts of one call."""
    restarts: int = 5
    """Maximum consecutive restarts without a served call."""


@dataclass(slots=True)
class HttpEngineStats:
    """Counts since the engine started."""

    requests: int = 0
    tries: int = 0
    """Requests sent, including interrupted ones."""
    outages: int = 0
    starts: int = 0
    """Starts of the server process."""
    published: int = 0


class HttpEngine:
    """`types.Engine` over a server process (`server`) or a running server (`endpoint`). Call `start` first.

    Args:
        protocol: Protocol of the server.
        folder: Folder for published weights, readable by the server.
        version: Version of the weights that the server starts with.
    """

    def __init__(
        self,
        protocol: ServerProtocol,
        folder: Path,
        *,
        server: ServerProcess | None = None,
        endpoint: HttpEndpoint | None = None,
        version: int = 0,
        patience: ServerTimeouts | None = None,
    ) -> None:
        if (server is None) == (endpoint is None):
            raise ConfigError("HttpEngine: pass exactly one of server and endpoint")
        self.protocol, self.folder = protocol, folder
        self.patience = patience or ServerTimeouts()
        self.max_tokens = 0
        self.had_other_weights = False
        """Whether a running server had weights published by another run, or by this run before a kill."""
        self.stats = HttpEngineStats()
        self._server, self._endpoint = server, endpoint
        self._version = self._published_version = version
        self._weights: Path | None = None
        """Checkpoint published last; None while the server's own is in use."""
        self._published = self._loaded = 0
        """Numbers of the last publication and of the one that the server has loaded."""
        self._paused = False
        self._failure: InfrastructureError | None = None
        self._up, self._lost = asyncio.Event(), asyncio.Event()
        """`_up`: the server is serving. `_lost`: set once when the current server is lost."""
        self._failed_starts = 0
        self._changing = asyncio.Lock()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def features(self) -> frozenset[Feature]:
        return self.protocol.features

    @property
    def supports_lora(self) -> bool:
        return self.protocol.supports_lora

    @property
    def supports_vision_lora(self) -> bool:
        return self.protocol.supports_vision_lora

    async def start(self) -> None:
        """Wait until the server is serving. Raises `ConfigError` for unsuitable options of the server,
        `InfrastructureError` if it does not start in time."""
        for leftover in self.folder.glob("version-*"):  # from a killed run
            await asyncio.to_thread(shutil.rmtree, leftover, True)
        try:
            await self._bring_up()
        except BaseException:
            await self.close()
            raise
        self._watcher = asyncio.create_task(self._watch(), name="engine-watcher")

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion, truncated at the server's context length. Raises like `types.Engine.generate`, and
        `RecordError` if the server placed images other than the prompt's."""
        length = len(prompt.token_ids)
        if length >= self.max_tokens:
            raise AgentError(
                f"prompt of {length} tokens exceeds the context length {self.max_tokens}; show fewer screenshots"
            )
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, self.max_tokens - length))
        self.stats.requests += 1
        last: InfrastructureError | None = None
        clock, left = asyncio.get_running_loop().time, self.patience.outage_s
        for _ in range(self.patience.tries):
            waiting_since = clock()
            try:
                async with asyncio.timeout(left):
                    lost, endpoint = await self._ready()
            except TimeoutError:
                break
            left -= clock() - waiting_since
            self.stats.tries += 1
            try:
                completion = await cancel_on(
                    lost, self.protocol.generate(endpoint, prompt, sampling, self.patience.request_s)
                )
                self._failed_starts = 0
                return completion
            except StaleWeights as error:
                last = error
                self._declare_lost(lost, str(error))
            except RetryRequest as error:
                last = error
            except (EndpointUnreachable, RequestRejected) as error:
                if isinstance(error, RequestRejected) and error.status < 500:
                    raise
                last = error
                await self._confirm(lost, endpoint)
        raise InfrastructureError(
            f"{self.protocol.name} did not serve a request within {self.patience.outage_s:g} s: {last or 'unreachable'}"
        )

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Write weights (torch tensors by state-dict names) as a checkpoint and load it into the server.

        An unreachable server gets them when it recovers. Raises `InfrastructureError` if it rejects them or does not
        recover in time.
        """
        await self._publish(version, lambda folder: write_checkpoint(folder, weights))

    async def update_lora(self, version: int, adapter: LoraWeights) -> None:
        """Like `update_weights`, for an adapter over the server's base weights."""
        await self._publish(version, lambda folder: write_adapter(folder, adapter))

    async def load_checkpoint(self, version: int, checkpoint: Path) -> None:
        """Like `update_weights`, for an existing checkpoint folder, which is not deleted."""
        async with self._changing:
            await self._send(version, checkpoint)

    async def _publish(self, version: int, write: Callable[[Path], None]) -> None:
        async with self._changing:
            target = self.folder / f"version-{version}"
            await asyncio.to_thread(write, target)
            await self._send(version, target)

    async def _send(self, version: int, target: Path) -> None:
        previous, self._weights, self._published_version = self._weights, target, version
        self._published += 1
        while True:
            lost, endpoint = await self._ready_in_time()
            if self._loaded == self._published:
                break
            try:
                await cancel_on(lost, self._load(endpoint))
            except (EndpointUnreachable, RequestRejected) as error:
                self._declare_lost(lost, str(error))
                if isinstance(error, RequestRejected):
                    raise
        self.stats.published += 1
        if previous != target:
            await self._discard(previous)

    async def _discard(self, weights: Path | None) -> None:
        if weights is not None and weights.parent == self.folder:
            await asyncio.to_thread(shutil.rmtree, weights, True)

    async def pause(self) -> None:
        """Pause sampling; requests in flight wait."""
        await self._set_paused(True)

    async def resume(self) -> None:
        await self._set_paused(False)

    async def _set_paused(self, paused: bool) -> None:
        async with self._changing:
            self._paused = paused
            _, endpoint = await self._ready_in_time()
            await (self.protocol.pause(endpoint) if paused else self.protocol.resume(endpoint))

    async def close(self) -> None:
        """Stop the server process, if any. Calls in flight fail with `InfrastructureError`."""
        self._fail(InfrastructureError("the engine is closed; start another"))
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._server is not None:
            await self._server.stop()
        await self._discard(self._weights)

    async def _ready(self) -> tuple[asyncio.Event, HttpEndpoint]:
        """Wait for a serving server."""
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
            raise InfrastructureError(
                f"{self.protocol.name} was unreachable for {self.patience.outage_s:g} s"
            ) from None

    async def _bring_up(self) -> None:
        """Start or wait for the server, then restore weights, version and pause."""
        if self._server is not None:
            if self._endpoint is not None:
                await self._endpoint.close()
            self._endpoint = await self._server.start()
            self.stats.starts = self._server.starts
        assert self._endpoint is not None
        endpoint = self._endpoint
        await self._wait_healthy(endpoint)
        self.max_tokens = await self.protocol.inspect(endpoint)
        self.protocol.forget()
        if self._weights is not None:
            await self._load(endpoint)
        elif (label := await self.protocol.label(endpoint)) != str(self._version):
            self.had_other_weights = label.isdecimal() and label != "0"
            await self.protocol.set_label(endpoint, str(self._version))
        if self._paused:
            await self.protocol.pause(endpoint)
        self._lost = asyncio.Event()
        self._up.set()

    async def _load(self, endpoint: HttpEndpoint) -> None:
        assert self._weights is not None
        published, version = self._published, self._published_version
        await self.protocol.load(endpoint, self._weights, str(version))
        self.protocol.forget()
        self._loaded, self._version = published, version
        if not self._paused:
            await self.protocol.resume(endpoint)

    async def _wait_healthy(self, endpoint: HttpEndpoint) -> None:
        clock = asyncio.get_running_loop().time
        end = clock() + self.patience.start_s
        while True:
            try:
                return await self.protocol.healthy(endpoint, min(5.0, self.patience.stall_s))
            except InfrastructureError as error:
                if self._server is not None and (reason := self._server.exit_reason):
                    output = f"{self._server.log} ends with: {self._server.last_output()}"
                    raise InfrastructureError(f"{self.protocol.name} did not start: {reason}; {output}") from None
                if clock() > end:
                    raise InfrastructureError(
                        f"{self.protocol.name} did not start in {self.patience.start_s:g} s: {error}"
                    ) from None
            await asyncio.sleep(min(self.patience.poll_s, 0.5))

    async def _watch(self) -> None:
        """Restart or wait for the server after each outage, until the engine is closed or gives up."""
        last_error = ""
        try:
            while self._failure is None:
                await self._wait_lost()
                self._up.clear()
                self._loaded = -1
                self.stats.outages += 1
                self._failed_starts += 1
                exit_reason = self._server.exit_reason if self._server is not None else None
                reason = exit_reason or "it did not answer or was restarted"
                if self._failed_starts > self.patience.restarts:
                    hint = f"; see {self._server.log}" if self._server is not None else ""
                    message = f"{self.protocol.name} was lost {self._failed_starts} times in a row"
                    self._fail(InfrastructureError(f"{message} ({last_error or reason}){hint}"))
                    return
                log.warning("engine.unreachable", server=self.protocol.name, reason=reason)
                try:
                    await self._bring_up()
                    last_error = ""
                    log.warning("engine.recovered", server=self.protocol.name, version=self._version)
                except InfrastructureError as error:
                    last_error = str(error)
                    log.warning("engine.unhealthy", server=self.protocol.name, error=last_error)
                    await asyncio.sleep(self.patience.poll_s)
        except Exception as error:  # no caller may wait for a watcher that has stopped
            self._fail(InfrastructureError(f"{self.protocol.name}: the watcher failed: {error}"))

    async def _wait_lost(self) -> None:
        clock = asyncio.get_running_loop().time
        last_healthy = clock()
        while not self._lost.is_set():
            assert self._endpoint is not None
            if self._server is not None and self._server.exit_reason:
                break
            try:
                await self.protocol.healthy(self._endpoint, min(self.patience.stall_s, 10.0))
                last_healthy = clock()
            except InfrastructureError:
                if clock() - last_healthy > self.patience.stall_s:
                    break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.patience.poll_s):
                    await self._lost.wait()
        self._lost.set()

    async def _confirm(self, lost: asyncio.Event, endpoint: HttpEndpoint) -> None:
        """Check the server after a broken connection; a healthy server is not lost."""
        try:
            await cancel_on(lost, self.protocol.healthy(endpoint, min(self.patience.stall_s, 10.0)))
        except InfrastructureError as error:
            self._declare_lost(lost, str(error))

    def _declare_lost(self, lost: asyncio.Event, why: str) -> None:
        if lost is self._lost and not lost.is_set():
            log.warning("engine.restarted", server=self.protocol.name, error=why)
            self._up.clear()
            lost.set()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or InfrastructureError(str(error))
        self._lost.set()
        self._up.set()


def connect_server(
    protocol: Callable[[ImageEncoder], ServerProtocol],
    url: str,
    image_processor: Any,
    folder: Path,
    *,
    api_key: str | None = None,
    version: int = 0,
    patience: ServerTimeouts | None = None,
) -> HttpEngine:
    """Return an engine on a running server, which must be able to read `folder`, where weights are written."""
    endpoint = HttpEndpoint(check_url(url, "engine.base_url"), api_key=api_key)
    return HttpEngine(
        protocol(ImageEncoder(image_processor)), folder, endpoint=endpoint, version=version, patience=patience
    )
