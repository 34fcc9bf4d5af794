"""The recorder: answers model calls of sessions and records them. Invariant: a reply leaves only after its call is checked,
journaled and recorded.

A violated invariant stops the session: the violation is counted by cause, the sample is never trained, later calls are refused.

Retries: a request that is made again is sampled again and becomes a sibling call (a fork). All calls are kept. Orphans, that is
calls whose request was repeated later and whose reply never came back, and calls whose reply reached nobody are marked as
untrained when the session ends, unless the recorder was made with `orphans="train"`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import structlog

from deskhand.errors import AgentError, InfrastructureError, RecordError
from deskhand.recorder.graph import Call, CallGraph
from deskhand.recorder.invariants import check_completion, check_history, check_prompt, check_turns
from deskhand.recorder.messages import Message, message
from deskhand.recorder.renderer import ChatRenderer
from deskhand.recorder.reply_index import running_digests
from deskhand.recorder.reply_parser import ParsedReply, parse_reply
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.rewards import Rewards
from deskhand.recorder.sessions import Session, SessionAccess, SessionRegistry
from deskhand.types import Completion, Engine, GrammarRefused, PreparedImage, Prompt, Sampling

log = structlog.get_logger()
T = TypeVar("T")
OnCall = Callable[[str, Call], Awaitable[None] | None]
OnReward = Callable[[str, Mapping[str, Any]], Awaitable[None] | None]
_WRITERS = 16
"""Threads that write journals. They wait for the disk, which takes what several have written at once."""


@dataclass(frozen=True)
class ChatRequest:
    """What an agent asks for: `n` replies to `messages`. The recorder adds the renderer's banned ids and stop ids to `sampling`.

    With a seed, reply i of n is sampled with `seed + i`.
    """

    messages: tuple[Message, ...]
    sampling: Sampling
    n: int = 1
    tools: tuple[Mapping[str, Any], ...] = ()
    """Offered tools, as OpenAI defines them; replies are then read for calls of them."""
    thinking: Literal["separate", "inline"] = "separate"
    """Whether thinking is taken out of the reply's text."""


@dataclass(frozen=True)
class Reply:
    """What `Recorder.complete` returns: the recorded calls, one per reply asked for, and what each said.

    `id` is the call's id when there is one.
    """

    id: str
    calls: tuple[Call, ...]
    prompt_tokens: int
    said: tuple[ParsedReply, ...] = ()


class Recorder:
    """Serves model calls from one engine and records them.

    `images` resolves picture hashes. `journal(session_id, call)` is called for every call before its reply leaves and may be a
    plain function (run in a thread) or a coroutine function; calls of one session reach it in order. `note(session_id, what)` is
    called in the same way for each reward. `context_tokens` is what the model can hold: a request whose prompt and `max_tokens`
    exceed it is refused with code "context_length_exceeded".
    `idle_s`: sessions of which nothing was asked for so long expire. `workers`: threads for images and ids; None: two a core.
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        engine: Engine,
        images: Mapping[str, PreparedImage],
        *,
        journal: OnCall | None = None,
        note: OnReward | None = None,
        context_tokens: int | None = None,
        orphans: Literal["untrained", "train"] = "untrained",
        idle_s: float | None = None,
        workers: int | None = None,
    ) -> None:
        self.renderer, self.engine, self.images = renderer, engine, images
        self.context_tokens = context_tokens
        self.sessions = SessionRegistry(idle_s)
        self.violations: Counter[str] = Counter()
        """Violated invariants by cause, over all sessions."""
        self.orphans = 0
        """Orphans of sessions that have ended."""
        self._journal, self._note, self._train_orphans = journal, note, orphans == "train"
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._workers = ThreadPoolExecutor(workers or min(16, 2 * (os.cpu_count() or 1)), thread_name_prefix="recorder")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="recorder-journal")

    def open_session(self, session_id: str) -> str:
        """Open a session and return its key. Raises `RequestRefused` when one of that id is open."""
        return self.sessions.open(session_id)

    def session(self, key: str) -> Session | None:
        """The open session of this key."""
        access = self.sessions.find(key)
        return access.session if access else None

    def close_session(self, session_id: str) -> CallGraph:
        """Close a session and return its graph; calls still in flight are refused when they come back.

        Raises `RequestRefused` when no such session is open and the `RecordError` that stopped it, if one did.
        """
        return self.end_with_rewards(session_id)[0]

    def end_with_rewards(self, session_id: str) -> tuple[CallGraph, Rewards]:
        """As `end`, with the rewards that were given."""
        session = self.sessions.close(session_id)
        if session.stopped is not None:
            raise session.stopped
        orphans = session.superseded_calls()
        self.orphans += len(orphans)
        if not self._train_orphans:
            session.graph.untrained |= dict.fromkeys(sorted(session.undelivered_calls), "unsent") | dict.fromkeys(
                sorted(orphans), "orphan"
            )
        return session.graph, session.rewards

    async def reward(
        self, session: Session, reward: float, call_id: str | None = None, *, whole: bool = False
    ) -> str | None:
        """Reward a call (None: the last one) and return its id, or the session as a whole.

        Raises `RequestRefused`, and `InfrastructureError` when the reward cannot be journaled.
        """
        session.refuse_closed()
        return await asyncio.shield(self._to_the_end(self._reward(session, reward, call_id, whole)))

    async def _reward(self, session: Session, reward: float, call_id: str | None, whole: bool) -> str | None:
        async with session.lock:
            session.refuse_closed()
            rewards = Rewards(dict(session.rewards.by_call), session.rewards.episode)
            if whole:
                rewards.give_episode(reward)
            else:
                call_id = rewards.give(session.graph.ids, reward, call_id)
            await self._write(self._note, session.id, {"reward": reward, "call_id": call_id})
            session.rewards = rewards
        return call_id

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run blocking work (decoding, hashing, tokenising) off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def complete(self, session: Session | SessionAccess, request: ChatRequest) -> Reply:
        """Answer one request and record it, as one of the session's agents if an `Access` is given.

        Raises `RequestRefused` (nothing sampled), `InfrastructureError` (engine or journal failed, the reply is not recorded) or
        `RecordError` (an invariant is violated; the session is stopped).
        """
        access = session if isinstance(session, SessionAccess) else SessionAccess(session)
        session = access.session
        session.refuse_closed()
        session.requests += 1
        session.in_flight += 1
        try:
            return await self._complete(access, request, f"{session.id}.{session.requests}")
        finally:
            session.in_flight -= 1
            session.last_used = self.sessions.now()

    async def _complete(self, access: SessionAccess, request: ChatRequest, request_id: str) -> Reply:
        session = access.session
        sampling = replace(
            request.sampling,
            banned_ids=tuple(sorted({*request.sampling.banned_ids, *self.renderer.banned_ids})),
            stop_ids=tuple(sorted({*request.sampling.stop_ids, *self.renderer.stop_ids})),
        )
        try:
            request, prompt, history = await self.in_thread(self._prepare, session, request)
            room = (self.context_tokens or 0) - len(prompt.token_ids)
            if self.context_tokens is not None and room < sampling.max_tokens:
                raise InvalidRequestError(
                    f"{len(prompt.token_ids)} prompt tokens and {sampling.max_tokens} to sample exceed {self.context_tokens}",
                    param="messages",
                    code="context_length_exceeded",
                )
            samplings = [
                sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + i)
                for i in range(request.n)
            ]
            dones = await _all(self.engine.generate(prompt, one) for one in samplings)
            checked = await self.in_thread(self._check_all, prompt, samplings, dones)
        except RecordError as error:
            self._stop(session, error)
            raise
        except InvalidRequestError:
            raise
        except GrammarRefused as error:
            raise InvalidRequestError(str(error), param="response_format", code="unsupported_parameter") from error
        except AgentError as error:  # the engine cannot hold a request of this length
            raise InvalidRequestError(str(error), param="messages", code="context_length_exceeded") from error
        calls = list[Call]()
        recording = self._record(access, request, request_id, prompt, checked, history, calls)
        keeping = self._to_the_end(self._or_stop(session, recording))

        def reached_nobody(_: object = None) -> None:
            session.undelivered_calls.update(call.id for call in calls)

        try:
            said = await asyncio.shield(keeping)
        except asyncio.CancelledError:
            keeping.add_done_callback(reached_nobody)
            raise
        except Exception:
            reached_nobody()
            raise
        return Reply(request_id, tuple(calls), len(prompt.token_ids), said)

    def _to_the_end(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work that is done to its end whoever goes away meanwhile, so that disk and memory agree. Await it by `asyncio.shield`."""
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # it is raised to who waits; nobody may be left who does

    def unsent(self, session: Session, reply: Reply) -> None:
        """Say that this reply reached nobody: its calls are kept and not trained."""
        session.undelivered_calls |= {call.id for call in reply.calls}

    def close(self) -> None:
        """End the worker threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._writers.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, session: Session, request: ChatRequest) -> tuple[ChatRequest, Prompt, set[str]]:
        if request.tools:
            request = replace(request, messages=self.renderer.tools.with_tools(request.messages, request.tools))
        standing = self.renderer.recorded_replies(request.messages)
        known = [one.digest for one in standing if session.recall.contains(one)]
        prompt = self.renderer.render(request.messages, self.images, session.recall)
        check_prompt(prompt, self.renderer.image_id)
        check_turns(prompt, self.renderer.end_id, self.renderer.turns(request.messages))
        check_history(prompt, [tuple(session.outputs[digest]) for digest in known])
        return request, prompt, session.recall.calls_in(request.messages)

    def _check_all(self, prompt: Prompt, samplings: list[Sampling], dones: list[Completion]) -> list[Completion]:
        return [self._check(prompt, one, done) for one, done in zip(samplings, dones, strict=True)]

    def _check(self, prompt: Prompt, sampling: Sampling, done: Completion) -> Completion:
        if done.finish_reason == "aborted":
            raise InfrastructureError("the engine aborted the request; nothing was recorded")
        check_completion(prompt, sampling, done, sampling.banned_ids, self.renderer.text_of)
        return replace(done, served_ids=prompt.token_ids)

    async def _or_stop(self, session: Session, work: Awaitable[T]) -> T:
        try:
            return await work
        except RecordError as error:
            self._stop(session, error)
            raise

    async def _record(
        self,
        access: SessionAccess,
        request: ChatRequest,
        request_id: str,
        prompt: Prompt,
        dones: list[Completion],
        history: set[str],
        calls: list[Call],
    ) -> tuple[ParsedReply, ...]:
        """Journal and add the replies, one after the other; those that are recorded are put into `calls`."""
        session = access.session
        texts = [self.renderer.text_of(done.token_ids) for done in dones]
        said = tuple(self._take_apart(request, text) for text in texts)
        async with session.lock:
            for index, (done, text) in enumerate(zip(dones, texts, strict=True)):
                session.refuse_closed()
                parent = session.graph.parent_of(prompt.token_ids, prompt.spans, request.sampling.temperature)
                call_id = request_id if request.n == 1 else f"{request_id}.{index}"
                temperature = request.sampling.temperature
                call = Call(call_id, parent, prompt.token_ids, prompt.spans, done, temperature, text, access.agent)
                session.graph.check(call)
                await self._write(self._journal, session.id, call)
                session.refuse_closed()  # it may have been ended meanwhile: who ended it has its graph, and this reply never leaves
                session.graph.add(call)
                forms = (said[index].as_message(), message("assistant", text))
                for form in forms:  # before `recall` knows them: other requests are rendered in other threads meanwhile
                    session.outputs.setdefault(form.digest, set()).add(done.token_ids)
                session.recall.record(request.messages, call, forms)
                calls.append(call)
            session.returned |= history
            asked = running_digests(request.messages)[-1] + repr((request.sampling, request.n, access.agent)).encode()
            session.answered.setdefault(asked, []).append({call.id for call in calls})
        return said

    def _take_apart(self, request: ChatRequest, text: str) -> ParsedReply:
        return parse_reply(
            text,
            thinking=None if request.thinking == "inline" else "opened" if self.renderer.opens_thinking else "unopened",
            stop_texts=request.sampling.stop_texts,
            tools=request.tools,
            tool_format=self.renderer.tools.format if request.tools else None,
        )

    async def _write(self, write: Callable[..., Any] | None, session_id: str, what: Any) -> None:
        if write is None:
            return
        try:
            if inspect.iscoroutinefunction(write):
                await write(session_id, what)
            else:
                await asyncio.get_running_loop().run_in_executor(self._writers, write, session_id, what)
        except RecordError:
            raise
        except Exception as error:  # whatever the journal's storage raises, what it was given is not safely stored
            raise InfrastructureError(f"the journal cannot be written: {error}") from error

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
