"""Sessions: one per episode, each with its key. Invariant: a reply leaves only after its call is checked, journaled and recorded.

A violated invariant stops the session: the violation is counted by cause, the sample is never trained, later calls are refused.

Retries: a request that is made again is sampled again and becomes a sibling call (a fork). All calls are kept and trained, unless
the recorder was made with `orphans="drop"`: then `end` leaves out calls whose request was repeated later and whose reply never
came back.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import structlog

from deskhand.engines.base import Completion, Engine, PreparedImage, Prompt, Sampling
from deskhand.errors import AgentError, InfrastructureError, RecordError
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.invariants import check_completion, check_prompt
from deskhand.recorder.messages import Message
from deskhand.recorder.recall import Recall, running_digests
from deskhand.recorder.refusal import RequestRefused
from deskhand.recorder.renderer import ChatRenderer

log = structlog.get_logger()
T = TypeVar("T")
Journal = Callable[[str, Call], Awaitable[None] | None]


@dataclass(frozen=True)
class ChatRequest:
    """What an agent asks for: `n` replies to `messages`. The recorder adds the renderer's banned ids and stop ids to `sampling`.

    With a seed, reply i of n is sampled with `seed + i`.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    n: int = 1


@dataclass
class Session:
    """One episode's calls. `stopped` is the violation that ended it, if any."""

    id: str
    key_digest: bytes
    graph: CallGraph = field(default_factory=CallGraph)
    recall: Recall = field(default_factory=Recall)
    stopped: RecordError | None = None
    ended: bool = False
    requests: int = 0
    answered: dict[bytes, list[set[str]]] = field(default_factory=dict)
    """Call ids of each request by what it asked, in order; more than one set means that it was repeated."""
    returned: set[str] = field(default_factory=set)
    """Calls whose reply came back as history."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def orphans(self) -> set[str]:
        """Calls whose request was repeated later and whose reply never came back."""
        earlier = {call_id for times in self.answered.values() for call_ids in times[:-1] for call_id in call_ids}
        return earlier - self.returned


@dataclass(frozen=True)
class Reply:
    """What `Recorder.complete` returns: the recorded calls, one per reply asked for. `id` is the call's id when there is one."""

    id: str
    calls: tuple[Call, ...]
    prompt_tokens: int


class Recorder:
    """Serves model calls from one engine and records them.

    `images` resolves picture hashes. `journal(session_id, call)` is called for every call before its reply leaves and may be a
    plain function (run in a thread) or a coroutine function; calls of one session reach it in order. `context_tokens` is what
    the model can hold: a request whose prompt and `max_tokens` exceed it is refused with code "context_length_exceeded".
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        engine: Engine,
        images: Mapping[str, PreparedImage],
        *,
        journal: Journal | None = None,
        context_tokens: int | None = None,
        orphans: Literal["keep", "drop"] = "keep",
        workers: int = 2,
    ) -> None:
        self.renderer, self.engine, self.images = renderer, engine, images
        self.context_tokens = context_tokens
        self.violations: Counter[str] = Counter()
        """Violated invariants by cause, over all sessions."""
        self.dropped_orphans = 0
        self._journal, self._drop_orphans = journal, orphans == "drop"
        self._sessions: dict[str, Session] = {}
        self._by_key: dict[bytes, Session] = {}
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="recorder")

    def start(self, session_id: str) -> str:
        """Open a session and return its key. Raises `RequestRefused` when one of that id is open."""
        if session_id in self._sessions:
            raise RequestRefused(f"session {session_id} is open already", param="session_id", code="session_open", status=409)
        key = "sk-" + secrets.token_urlsafe(32)
        session = self._sessions[session_id] = Session(session_id, _key_digest(key))
        self._by_key[session.key_digest] = session
        return key

    def session(self, key: str) -> Session | None:
        """The open session of this key. Keys are looked up by their SHA-256, so timing tells nothing of them."""
        return self._by_key.get(_key_digest(key))

    def end(self, session_id: str) -> CallGraph:
        """Close a session and return its graph; calls still in flight are refused when they come back.

        Raises `RequestRefused` when no such session is open and the `RecordError` that stopped it, if one did.
        """
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise RequestRefused(f"no session {session_id} is open", param="session_id", code="session_unknown", status=404)
        del self._by_key[session.key_digest]
        session.ended = True
        if session.stopped is not None:
            raise session.stopped
        orphans = session.orphans() if self._drop_orphans else set()
        self.dropped_orphans += len(orphans)
        return session.graph.without(orphans) if orphans else session.graph

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run blocking work (decoding, hashing, tokenising) off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def complete(self, session: Session, request: ChatRequest) -> Reply:
        """Answer one request and record it.

        Raises `RequestRefused` (nothing sampled), `InfrastructureError` (engine or journal failed, the reply is not recorded) or
        `RecordError` (an invariant is violated; the session is stopped).
        """
        self._refuse_closed(session)
        session.requests += 1
        request_id = f"{session.id}.{session.requests}"
        sampling = replace(
            request.sampling,
            banned_ids=tuple(sorted({*request.sampling.banned_ids, *self.renderer.banned_ids})),
            stop_ids=tuple(sorted({*request.sampling.stop_ids, *self.renderer.stop_ids})),
        )
        try:
            prompt, history = await self.in_thread(self._prepare, session, request)
            room = (self.context_tokens or 0) - len(prompt.token_ids)
            if self.context_tokens is not None and room < sampling.max_tokens:
                raise RequestRefused(
                    f"{len(prompt.token_ids)} prompt tokens and {sampling.max_tokens} to sample exceed {self.context_tokens}",
                    param="messages",
                    code="context_length_exceeded",
                )
            samplings = [sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + i) for i in range(request.n)]
            dones = await _all(self.engine.generate(prompt, one) for one in samplings)
            checked = [self._check(prompt, one, done) for one, done in zip(samplings, dones, strict=True)]
            calls = await self._record(session, request, request_id, prompt, checked, history)
        except RecordError as error:
            self._stop(session, error)
            raise
        except RequestRefused:
            raise
        except AgentError as error:  # the engine cannot hold a request of this length
            raise RequestRefused(str(error), param="messages", code="context_length_exceeded") from error
        return Reply(request_id, calls, len(prompt.token_ids))

    def close(self) -> None:
        """End the worker threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, session: Session, request: ChatRequest) -> tuple[Prompt, set[str]]:
        prompt = self.renderer.render(request.messages, self.images, session.recall)
        check_prompt(prompt, self.renderer.image_id)
        return prompt, session.recall.calls_in(request.messages)

    def _check(self, prompt: Prompt, sampling: Sampling, done: Completion) -> Completion:
        if done.finish_reason == "aborted":
            raise InfrastructureError("the engine aborted the request; nothing was recorded")
        check_completion(prompt, sampling, done, sampling.banned_ids)
        return replace(done, served_ids=prompt.token_ids)

    async def _record(
        self, session: Session, request: ChatRequest, request_id: str, prompt: Prompt, dones: list[Completion], history: set[str]
    ) -> tuple[Call, ...]:
        calls: list[Call] = []
        texts = [self.renderer.text_of(done.token_ids) for done in dones]
        async with session.lock:
            for index, (done, text) in enumerate(zip(dones, texts, strict=True)):
                self._refuse_closed(session)
                parent = session.graph.parent_of(prompt.token_ids, prompt.spans, request.sampling.temperature)
                call_id = request_id if request.n == 1 else f"{request_id}.{index}"
                call = Call(call_id, parent, prompt.token_ids, prompt.spans, done, request.sampling.temperature, text)
                await self._write_journal(session.id, call)
                session.graph.add(call)
                session.recall.record(request.messages, call)
                calls.append(call)
            session.returned |= history
            asked = running_digests(request.messages)[-1] + repr((request.sampling, request.n)).encode()
            session.answered.setdefault(asked, []).append({call.id for call in calls})
        return tuple(calls)

    async def _write_journal(self, session_id: str, call: Call) -> None:
        if self._journal is None:
            return
        try:
            if inspect.iscoroutinefunction(self._journal):
                await self._journal(session_id, call)
            else:
                await self.in_thread(self._journal, session_id, call)
        except Exception as error:  # whatever the journal's storage raises, the call is not safely stored
            raise InfrastructureError(f"the journal cannot be written: {error}") from error

    def _refuse_closed(self, session: Session) -> None:
        if session.stopped is not None:
            raise RequestRefused(f"session {session.id} was stopped: {session.stopped}", code="session_stopped", status=409)
        if session.ended:
            raise RequestRefused(f"session {session.id} has ended", code="session_ended", status=409)

    def _stop(self, session: Session, error: RecordError) -> None:
        self.violations[error.cause] += 1
        session.stopped = session.stopped or error
        log.error("recorder.violation", session=session.id, cause=error.cause, message=str(error))


async def _all(work: Iterable[Awaitable[Completion]]) -> list[Completion]:
    """Wait for all of it, then raise the first error if there is one: nothing is left running behind an error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Completion)]


def _key_digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
