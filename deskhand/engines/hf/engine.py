"""The engine's thread and its callers. Invariant: every caller gets a completion or an error; the thread never dies silently.

All work on the model happens in one thread: it alternates between admitting what waits, one decoding step, and commands
(new weights, pause, close), so a command never meets a half-done step.

New weights while requests are in flight: they go on with the keys and values that the old weights computed (partial rollout);
each token's version says which weights sampled it. Finished keys and values and, when the vision tower changed, image
features are dropped, so no later request starts from a mixture.

A trainer in the same process may train the very tensors that the engine samples from: nothing is copied, and there is no second
model in memory. It calls `hold` before it changes them and `adopt` when they are those of a version: in between no token is
sampled.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from deskhand.config.schema import EngineConfig
from deskhand.engines.hf.decode_batch import DecodeBatch, DecodeRequest, EngineStats
from deskhand.engines.hf.grammar import GrammarCompiler, GrammarState
from deskhand.engines.hf.lora_overlay import LoraOverlay
from deskhand.errors import AgentError, ConfigError, InfrastructureError
from deskhand.models.forward import check_row, unwrap
from deskhand.models.load import LoadedModel
from deskhand.types import Completion, Feature, UnsupportedGrammar, LoraWeights, Prompt, Sampling

_SMALL_PARAMETERS = 50_000_000


class HfEngine:
    """Serves `engines.base.Engine` from a model in this process, which it owns from now on.

    `threads`: processor threads of the engine; None means one for a model of fewer than 5e7 parameters, whose operations are
    too small to share, and torch's setting for a larger one. The threads of callers are as before.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig | None = None,
        *,
        threads: int | None = None,
        version: int = 0,
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
        self._laid = LoraOverlay(self._core)
        self._batch = DecodeBatch(model.model, config)
        self._version = version
        self._wake = threading.Condition()
        self._waiting: deque[DecodeRequest] = deque()
        self._commands: deque[tuple[Callable[[], None], asyncio.Future[None]]] = deque()
        self._paused = self._held = False
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
        """What it can do beyond sampling ids; grammars and stop texts need the checkpoint's tokenizer."""
        with_text: frozenset[Feature] = frozenset({"regex", "json_schema", "stop_texts", "top_logprobs"})
        return with_text if self._tokenizer is not None else frozenset({"top_logprobs"})

    @property
    def stats(self) -> EngineStats:
        """A copy of the counters."""
        return self._batch.stats.copy()

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot."""
        return len(self._batch.requests)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one completion.

        Output is cut at `max_tokens` of the engine. Raises `AgentError` when the prompt leaves no room for a token,
        `RecordError` when placeholders and images disagree, `UnsupportedGrammar` when the grammar cannot be kept to,
        `InfrastructureError` when the engine is down.
        """
        length = len(prompt.token_ids)
        if length >= self._max_tokens:
            raise AgentError(
                f"prompt of {length} tokens, the engine holds {self._max_tokens}; show fewer screenshots or raise max_tokens"
            )
        _check_sampling(length, sampling, self._core.config.text_config.vocab_size)
        if sampling.stop_texts and self._tokenizer is None:
            raise ConfigError("stop_texts need a tokenizer, which this engine was made without")
        check_row(prompt, prompt.images or {}, self._image_token_id)
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

    async def _progress(self, sampling: Sampling) -> GrammarState | None:
        if sampling.grammar is None:
            return None
        if self._grammars is None:
            raise UnsupportedGrammar("this engine has no tokenizer and so no grammars")
        return await asyncio.to_thread(self._grammars.start, sampling.grammar, sampling.stop_ids)

    def _text_of(self, token_ids: list[int]) -> str:
        """Text of sampled ids, as the recorder reads them."""
        assert self._tokenizer is not None
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    async def update_weights(self, version: int, weights: Mapping[str, Any]) -> None:
        """Take new weights (state-dict names; those left out stay) between two steps. All are checked before any is taken.

        Raises `ConfigError` for an unknown name or another shape.
        """
        for name, value in weights.items():
            if name not in self._targets:
                raise ConfigError(
                    f"weights {name!r}: the engine's model has no such tensor; publish merged state-dict names"
                )
            if tuple(value.shape) != tuple(self._targets[name].shape):
                expected = tuple(self._targets[name].shape)
                raise ConfigError(f"weights {name!r}: shape {tuple(value.shape)}, the engine's model has {expected}")

        def swap() -> None:
            self._laid.clear()
            self._batch.load_weights(weights, self._targets)
            self._version = version

        await self._command(swap)

    @property
    def supports_lora(self) -> bool:
        """Whether `publish_adapter` is of use: the model is laid out as the checkpoint has it."""
        return True

    @property
    def supports_vision_lora(self) -> bool:
        """Whether an adapter may be for the vision tower, too: features that it changes are dropped."""
        return True

    async def update_lora(self, version: int, adapter: LoraWeights) -> None:
        """Lay an adapter over the weights that the engine began with, between two steps; requests in flight go on with it.

        Raises `ConfigError` for a projection that the model does not have, or another shape.
        """
        self._laid.check(adapter)

        def swap() -> None:
            self._laid.apply(adapter)
            self._batch.forget(any(".visual." in name for name in adapter.weights))
            self._version = version

        await self._command(swap)

    def shares_weights_with(self, model: Any) -> bool:
        """Whether `model` consists of the tensors that the engine samples from."""
        return unwrap(model) is self._core

    def pause_for_update(self) -> None:
        """Sample nothing until `adopt`. Blocks until the step in progress is done; for the thread that changes shared weights."""
        with self._wake:
            self._held = True
        with self._working:
            pass

    @contextmanager
    def paused_for_update(self) -> Iterator[None]:
        """Inside the block nothing is sampled: for what changes shared weights and puts them back."""
        before = self._held
        self.pause_for_update()
        try:
            yield
        finally:
            with self._wake:
                self._held = before
                self._wake.notify()

    async def set_version(self, version: int) -> None:
        """The shared weights are now those of `version`: drop what others computed, and sample again."""
        seen_changed = any(parameter.requires_grad for parameter in self._core.model.visual.parameters())

        def go_on() -> None:
            self._batch.forget(seen_changed)
            self._version = version
            self._held = False

        await self._command(go_on)

    async def pause(self) -> None:
        """Stop after the step in progress; requests in flight keep their slots."""
        await self._command(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        await self._command(lambda: setattr(self, "_paused", False))

    async def close(self) -> None:
        """End the thread. Requests that are not done fail with `InfrastructureError`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _start(self, threads: int | None) -> threading.Thread:
        """Start the thread.

        Torch's count belongs to a thread, but setting it also sets the default that every other thread takes when it first
        looks; so this thread looks before it sets, and the caller's count is set again.
        """
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
        failure = InfrastructureError("the engine was closed before the request was done")
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
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
        """Wait for work, then run the commands, admit, and make one step. False when the engine closes."""
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
        return self._paused or self._held

    def _work(self) -> None:
        """Admit what waits, then make one step."""
        batch = self._batch
        self._answer()
        while batch.room and (newcomers := self._next_waiting(batch.room)):
            batch.admit(newcomers, self._version)
            with self._wake:
                for _ in newcomers:
                    self._waiting.popleft()
            self._answer()
        if batch.requests:
            batch.step(self._version)
            self._answer()

    def _next_waiting(self, count: int) -> list[DecodeRequest]:
        """The first requests in the queue, which stay there so that a failure reaches them too; cancelled ones leave it."""
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
        raise ConfigError(f"prompt of {length} tokens, max_tokens {sampling.max_tokens}; both must be at least 1")
    if not sampling.temperature >= 0 or not 0 < sampling.top_p <= 1:
        raise ConfigError(
            f"temperature {sampling.temperature}, top_p {sampling.top_p}; write temperature >= 0 and 0 < top_p <= 1"
        )
    if (
        any(not 0 <= banned < vocabulary for banned in sampling.banned_ids)
        or len(set(sampling.banned_ids)) >= vocabulary
    ):
        raise ConfigError(f"banned_ids must be ids below {vocabulary} and leave one to sample")


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Resolve a future of another thread's loop; a loop that has ended needs no answer."""

    def resolve() -> None:
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(type(outcome)(str(outcome)))  # one for each caller: tracebacks grow on an error
        else:
            future.set_result(outcome)

    try:
        future.get_loop().call_soon_threadsafe(resolve)
    except RuntimeError:
        return
