"""In-process engine: a thread that runs the model, and its asynchronous callers.

Built by `recipes.engine_factory`; start with `HfEngine.generate`. One thread alternates between admitting requests, at
most `engine.max_num_batched_tokens` tokens of their prompts, one decoding step, and commands (new weights, pause,
close), so commands run between steps.

Requests in flight during a weight update keep the keys and values of the old weights (partial rollout); each token has
the version that sampled it. Cached prefixes and, if the vision tower changed, image features are dropped.

A trainer in the same process may share the engine's tensors, so nothing is copied. It calls `pause_for_update` before
changing them and `set_version` afterwards; no token is sampled in between.

Invariant: every caller gets a completion or an error; the thread never dies silently.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf.decode_batch import DecodeBatch, EngineStats
from deskhand.engines.hf.decode_request import DecodeRequest
from deskhand.engines.hf.grammar import GrammarCompiler, GrammarState
from deskhand.engines.hf.lora_overlay import LoraOverlay
from deskhand.engines.hf.stream import EngineStream
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.models.forward import check_row, unwrap
from deskhand.models.load import LoadedModel
from deskhand.types import Completion, Feature, LoraWeights, Prompt, Sampling, StoredPixels, UnsupportedGrammar

_SMALL_PARAMETERS = 50_000_000


class HfEngine:
    """`types.Engine` over a model in this process, which it owns.

    Args:
        config: Section `engine` of the config, with the sizes of batch, context and caches. `threads` None means one
            CPU thread for models below 5e7 parameters, else torch's setting. Other threads are unaffected.
    """

    supports_lora = supports_vision_lora = True
    """Changed image features are dropped."""

    def __init__(
        self, model: LoadedModel, config: EngineConfig | None = None, *, threads: int | None = None, version: int = 0
    ) -> None:
        self._core = unwrap(model.model)
        self._core.eval()
        config = config or EngineConfig()
        self._max_tokens = config.max_model_len
        self._image_token_id = model.image_token_id
        self._tokenizer = model.tokenizer.backend_tokenizer if model.tokenizer is not None else None
        vocabulary = self._core.config.text_config.vocab_size
        self._grammars = GrammarCompiler(model.tokenizer, vocabulary) if model.tokenizer is not None else None
        self._targets: dict[str, torch.Tensor] = dict(self._core.named_parameters(remove_duplicate=False))
        self._targets.update(self._core.named_buffers(remove_duplicate=False))
        self._lora = LoraOverlay(self._core)
        self._batch = DecodeBatch(model.model, config)
        self._stream = EngineStream(self._core.lm_head.weight.device)
        self._stream.wait_for_caller()  # which loads the weights
        self._version = version
        self._wake = threading.Condition()
        self._waiting: deque[DecodeRequest] = deque()
        self._commands: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._paused = self._is_updating = False
        self._working = threading.Lock()
        """Held by the thread while it runs the model."""
        self._closing = False
        self._failure: InfrastructureError | None = None
        if threads is None and sum(parameter.numel() for parameter in self._core.parameters()) < _SMALL_PARAMETERS:
            threads = 1
        self._thread = self._start(threads)

    @property
    def version(self) -> int:
        return self._version

    @property
    def features(self) -> frozenset[Feature]:
        """Optional features; grammars and stop texts need the checkpoint's tokenizer."""
        with_text: frozenset[Feature] = frozenset({"regex", "json_schema", "stop_texts", "top_logprobs"})
        return with_text if self._tokenizer is not None else frozenset({"top_logprobs"})

    @property
    def stats(self) -> EngineStats:
        """A copy of the counters."""
        return replace(self._batch.stats)

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot."""
        return len(self._batch.requests)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion, truncated at the engine's `max_tokens`. Raises like `types.Engine.generate`, and
        `RecordError` if placeholders and images differ."""
        length = len(prompt.token_ids)
        if length >= self._max_tokens:
            raise AgentError(
                f"prompt of {length} tokens exceeds the context length {self._max_tokens}; "
                "show fewer screenshots or raise engine.max_model_len"
            )
        _check_sampling(length, sampling, self._core.config.text_config.vocab_size)
        if sampling.stop_texts and self._tokenizer is None:
            raise ConfigError("stop_texts: the engine has no tokenizer")
        check_row(prompt, prompt.images or {}, self._image_token_id)
        await self._extract_patches(prompt)
        request = DecodeRequest(
            prompt,
            sampling,
            min(sampling.max_tokens, self._max_tokens - length),
            asyncio.get_running_loop().create_future(),
            random.Random(sampling.seed),
            await self._progress(sampling),
            self._text_of if sampling.stop_texts else None,
        )
        with self._wake:
            self._check_alive()
            self._waiting.append(request)
            self._wake.notify()
        try:
            return await request.future
        except asyncio.CancelledError:
            request.cancelled = True
            with self._wake:
                self._wake.notify()
            raise

    async def _extract_patches(self, prompt: Prompt) -> None:
        """Let another thread extract the patches of new images, so that requests in flight do not wait for them."""
        images = (one for name, one in (prompt.images or {}).items() if self._batch.image_features(name) is None)
        new = [values for image in images if isinstance(values := image.pixel_values, StoredPixels)]
        if new:
            await asyncio.to_thread(lambda: [one.stored() for one in new])

    async def _progress(self, sampling: Sampling) -> GrammarState | None:
        if sampling.grammar is None:
            return None
        if self._grammars is None:
            raise UnsupportedGrammar("grammars need a tokenizer, and the engine has none")
        return await asyncio.to_thread(self._grammars.start, sampling.grammar, sampling.stop_ids)

    def _text_of(self, token_ids: list[int]) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Load new weights by state-dict names between two steps; unnamed ones stay. All are checked before loading.
        Raises `ConfigError` for an unknown name or a wrong shape."""
        for name, value in weights.items():
            if name not in self._targets:
                raise ConfigError(f"weights {name!r}: unknown tensor; publish merged state-dict names")
            if tuple(value.shape) != tuple(self._targets[name].shape):
                expected = tuple(self._targets[name].shape)
                raise ConfigError(f"weights {name!r}: expected shape {expected}, got {tuple(value.shape)}")

        def swap() -> None:
            self._lora.clear()
            self._batch.load_weights(weights, self._targets)
            self._version = version
            self._stream.finish()  # the caller may change or free its tensors

        self._stream.wait_for_caller()
        await self._command(swap)

    async def update_lora(self, version: int, adapter: LoraWeights) -> None:
        """Apply an adapter over the initial weights between two steps; requests in flight continue with it. Raises
        `ConfigError` for an unknown projection or a wrong shape."""
        self._lora.check(adapter)

        def swap() -> None:
            self._lora.apply(adapter)
            self._batch.clear_caches(any(".visual." in name for name in adapter.weights))
            self._version = version
            self._stream.finish()

        self._stream.wait_for_caller()
        await self._command(swap)

    def shares_weights_with(self, model: Any) -> bool:
        """Return whether `model` consists of the engine's tensors."""
        return unwrap(model) is self._core

    def image_features(self, sha256: str) -> tuple[torch.Tensor, ...] | None:
        """Return the cached features of an image, [tokens, H] per feature layer; may be called in other threads."""
        features = self._batch.image_features(sha256)
        if features is not None:
            self._stream.lend(features)
        return features

    def has_tower_of(self, model: Any) -> bool:
        """Return whether the vision towers have equal tensors of one type on one device."""
        own, other = (dict(each.model.visual.state_dict()) for each in (self._core, unwrap(model)))
        return own.keys() == other.keys() and all(
            (tensor.dtype, tensor.device, tensor.shape) == (other[name].dtype, other[name].device, other[name].shape)
            and torch.equal(tensor, other[name])
            for name, tensor in own.items()
        )

    def pause_for_update(self) -> None:
        """Sample nothing until `set_version`. Blocks until the current step is done; called by the trainer's thread."""
        with self._wake:
            self._is_updating = True
        with self._working:
            self._stream.wait_for_engine()

    @contextmanager
    def paused_for_update(self) -> Iterator[None]:
        """Sample nothing inside the block, for code that changes shared weights and restores them."""
        before = self._is_updating
        self.pause_for_update()
        try:
            yield
        finally:
            self._stream.wait_for_caller()
            with self._wake:
                self._is_updating = before
                self._wake.notify()

    async def set_version(self, version: int) -> None:
        """Declare the shared weights to be those of `version`, clear the caches and resume sampling."""
        vision_changed = any(parameter.requires_grad for parameter in self._core.model.visual.parameters())

        def resume() -> None:
            self._batch.clear_caches(vision_changed)
            self._version = version
            self._is_updating = False

        self._stream.wait_for_caller()
        await self._command(resume)

    async def pause(self) -> None:
        """Stop after the current step; requests in flight keep their slots."""
        await self._command(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        await self._command(lambda: setattr(self, "_paused", False))

    async def close(self) -> None:
        """Stop the thread. Unfinished requests fail with `InfrastructureError`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _start(self, threads: int | None) -> threading.Thread:
        """Start the thread. Torch's thread count belongs to a thread, but setting it also sets the default that other
        threads read first. So this thread reads its default before setting it, and the caller's count is restored."""
        callers, ready = torch.get_num_threads(), threading.Event()

        def run() -> None:
            default = torch.get_num_threads()
            torch.set_num_threads(threads or default)
            ready.set()
            self._run()

        thread = threading.Thread(target=run, name="deskhand-engine", daemon=True)
        thread.start()
        ready.wait()
        torch.set_num_threads(callers)
        return thread

    async def _command(self, action: Callable[[], None]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._wake:
            self._check_alive()
            self._commands.append((action, future))
            self._wake.notify()
        await future

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise InfrastructureError(str(self._failure))
        if self._closing:
            raise InfrastructureError("the engine is closed; start another")

    def _run(self) -> None:
        failure = InfrastructureError("the engine was closed before the request was finished")
        try:
            with torch.inference_mode(), self._stream.current():
                while self._turn():
                    pass
                self._stream.finish()
        except BaseException as error:
            line = (str(error).strip() or "no message").splitlines()[0][:300]
            failure = InfrastructureError(f"the engine stopped: {type(error).__name__}: {line}; start another")
        with self._wake:
            self._failure = failure
            futures = [request.future for request in (*self._batch.requests, *self._waiting)]
            futures += [future for _, future in self._commands]
        for future in futures:
            _settle(future, failure)

    def _turn(self) -> bool:
        """Wait for work, then run commands and one step. Return False when the engine closes."""
        batch = self._batch
        with self._wake:
            while not (self._closing or self._commands or (not self._stopped and (self._waiting or batch.requests))):
                self._wake.wait()
            if self._closing:
                return False
            commands = list(self._commands)
        for action, future in commands:
            action()
            self._commands.popleft()
            _settle(future, None)
        with self._working:
            if not self._stopped:
                self._work()
        return True

    @property
    def _stopped(self) -> bool:
        return self._paused or self._is_updating

    def _work(self) -> None:
        """Admit waiting requests, then run one step."""
        batch = self._batch
        self._answer()
        admitted = batch.admit(self._next_waiting(batch.room), self._version)
        if admitted:
            with self._wake:
                for _ in range(admitted):
                    self._waiting.popleft()
            self._answer()
        if batch.requests:
            batch.step(self._version)
            self._answer()

    def _next_waiting(self, count: int) -> list[DecodeRequest]:
        """Return the first queued requests. They stay queued, so that a failure reaches them; canceled ones leave."""
        with self._wake:
            self._waiting = deque(request for request in self._waiting if not request.cancelled)
            return list(itertools.islice(self._waiting, count))

    def _answer(self) -> None:
        for request in self._batch.finished(self._version):
            reason = request.finish_reason
            if request.failure is not None:
                _settle(request.future, request.failure)
            if request.cancelled or request.failure is not None or reason is None:
                continue
            completion = Completion(
                tuple(request.token_ids),
                tuple(request.logprobs),
                tuple(request.versions),
                reason,
                request.served_ids,
                tuple(request.top_logprobs),
            )
            _settle(request.future, completion)


def _check_sampling(length: int, sampling: Sampling, vocabulary: int) -> None:
    if not length or sampling.max_tokens < 1:
        raise ConfigError(f"max_tokens: must be at least 1, got {sampling.max_tokens} for a prompt of {length} tokens")
    if not sampling.temperature >= 0:
        raise ConfigError(f"temperature: must be at least 0, got {sampling.temperature}")
    if not 0 < sampling.top_p <= 1:
        raise ConfigError(f"top_p: must be in (0, 1], got {sampling.top_p}")
    if (
        any(not 0 <= banned < vocabulary for banned in sampling.banned_ids)
        or len(set(sampling.banned_ids)) >= vocabulary
    ):
        raise ConfigError(f"banned_ids: must be ids below {vocabulary} and leave one to sample")


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Resolve a future of another thread's loop, unless the loop has ended."""

    def resolve() -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(type(outcome)(str(outcome)))  # a copy per caller, because tracebacks accumulate
        else:
            future.set_result(outcome)

    try:
        future.get_loop().call_soon_threadsafe(resolve)
    except RuntimeError:
        return
