"""Recorder: serve model calls of sessions and store each one.

Used by `recorder.server` (HTTP) and `rollout.runner` (in process); start with `Recorder.open_session` and `complete`.

A violated invariant stops the session: it is counted by cause, the sample is never trained on, and later calls are
rejected. A repeated request is sampled again and becomes a sibling call. When the session is closed, superseded calls
(request repeated later, reply never used as history) and undelivered ones are marked as untrained.

Invariant: a call is validated and on disk before its reply is sent.
"""

from __future__ import annotations

import asyncio
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
from deskhand.types import Completion, Engine, PreparedImage, Prompt, Sampling, UnsupportedGrammar

log = structlog.get_logger()
T = TypeVar("T")
OnCall = Callable[[str, Call], None]
OnReward = Callable[[str, Mapping[str, Any]], None]
_WRITERS = 16
"""Threads that write calls to disk; they mostly wait for fsync, which the disk batches."""


@dataclass(frozen=True)
class ChatRequest:
    """Request for `n` replies to `messages`. The recorder adds the renderer's banned ids and stop ids to `sampling`.
    With a seed, reply i uses `seed + i`."""

    messages: tuple[Message, ...]
    sampling: Sampling
    n: int = 1
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tool definitions in OpenAI's format."""
    thinking: Literal["separate", "inline"] = "separate"
    """Whether thinking is separated from the reply's text."""


@dataclass(frozen=True)
class Reply:
    """Recorded calls of one request, one per reply, and their parsed texts. With one call, `id` is its id."""

    id: str
    calls: tuple[Call, ...]
    prompt_tokens: int
    parsed: tuple[ParsedReply, ...] = ()


class Recorder:
    """Serves model calls from one engine and records them.

    Args:
        on_call: Called in a thread as `on_call(session_id, call)` before a reply is sent, in order within a session.
        on_reward: Called in the same way as `on_reward(session_id, {"reward", "call_id"})`.
        context_tokens: Context length of the model. A request whose prompt and `max_tokens` exceed it is rejected with
            code "context_length_exceeded".
        idle_s: Sessions idle for this many seconds expire.
        workers: Threads for images and token ids (default: two per core).
    """

    def __init__(
        self,
        renderer: ChatRenderer,
        engine: Engine,
        images: Mapping[str, PreparedImage],
        *,
        on_call: OnCall | None = None,
        on_reward: OnReward | None = None,
        context_tokens: int | None = None,
        idle_s: float | None = None,
        workers: int | None = None,
    ) -> None:
        self.renderer, self.engine, self.images = renderer, engine, images
        self.context_tokens = context_tokens
        self.sessions = SessionRegistry(idle_s)
        self.violations: Counter[str] = Counter()
        """Violated invariants by cause, over all sessions."""
        self._on_call, self._on_reward = on_call, on_reward
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._workers = ThreadPoolExecutor(workers or min(16, 2 * (os.cpu_count() or 1)), thread_name_prefix="recorder")
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="recorder-writer")

    def open_session(self, session_id: str) -> str:
        """Open a session and return its key. Raises `InvalidRequestError` if the id is in use."""
        return self.sessions.open(session_id)

    def session(self, key: str) -> Session | None:
        """Return the open session of this key."""
        access = self.sessions.find(key)
        return access.session if access else None

    def close_session(self, session_id: str) -> CallGraph:
        """Close a session and return its graph; calls still in flight are rejected. Raises `InvalidRequestError` if no
        such session is open, or the `RecordError` that stopped it."""
        return self.close_with_rewards(session_id)[0]

    def close_with_rewards(self, session_id: str) -> tuple[CallGraph, Rewards]:
        """Like `close_session`, with the rewards."""
        session = self.sessions.close(session_id)
        if session.stopped is not None:
            raise session.stopped
        session.graph.untrained |= dict.fromkeys(sorted(session.undelivered_calls), "undelivered")
        session.graph.untrained |= dict.fromkeys(sorted(session.superseded_calls()), "superseded")
        return session.graph, session.rewards

    async def reward(
        self, session: Session, reward: float, call_id: str | None = None, *, whole: bool = False
    ) -> str | None:
        """Reward a call (None: the last one) and return its id, or reward the session as a whole. Raises
        `InvalidRequestError` if it cannot be rewarded, `InfrastructureError` if the reward cannot be stored."""
        session.check_open()
        return await asyncio.shield(self._run_to_completion(self._reward(session, reward, call_id, whole)))

    async def _reward(self, session: Session, reward: float, call_id: str | None, whole: bool) -> str | None:
        async with session.lock:
            session.check_open()
            rewards = Rewards(dict(session.rewards.by_call), session.rewards.episode)
            if whole:
                rewards.set_episode(reward)
            else:
                call_id = rewards.set_call(session.graph.ids, reward, call_id)
            await self._write(self._on_reward, session.id, {"reward": reward, "call_id": call_id})
            session.rewards = rewards
        return call_id

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run blocking work (decoding, hashing, tokenizing) off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def complete(self, session: Session | SessionAccess, request: ChatRequest) -> Reply:
        """Serve one request and record it, for one of the session's agents if a `SessionAccess` is passed.

        Raises:
            InvalidRequestError: The request cannot be served; nothing was sampled.
            InfrastructureError: Engine or storage failed; the reply is not recorded.
            RecordError: An invariant is violated; the session is stopped.
        """
        access = session if isinstance(session, SessionAccess) else SessionAccess(session)
        session = access.session
        session.check_open()
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
        sampled = self._sample(session, request, sampling)
        request, prompt, history, checked = await self._stop_on_violation(session, sampled)
        calls = list[Call]()
        recording = self._record(access, request, request_id, prompt, checked, history, calls)
        task = self._run_to_completion(self._stop_on_violation(session, recording))

        def mark_undelivered(_: object = None) -> None:
            session.undelivered_calls.update(call.id for call in calls)

        try:
            parsed = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(mark_undelivered)
            raise
        except Exception:
            mark_undelivered()
            raise
        return Reply(request_id, tuple(calls), len(prompt.token_ids), parsed)

    async def _sample(
        self, session: Session, request: ChatRequest, sampling: Sampling
    ) -> tuple[ChatRequest, Prompt, set[str], list[Completion]]:
        """Return the request with its tools rendered, the prompt, the calls in its history and the checked replies."""
        try:
            request, prompt, history = await self.in_thread(self._prepare, session, request)
            length, limit = len(prompt.token_ids), self.context_tokens
            if limit is not None and length + sampling.max_tokens > limit:
                raise InvalidRequestError(
                    f"{length} prompt tokens and {sampling.max_tokens} to sample exceed {limit}",
                    param="messages",
                    code="context_length_exceeded",
                )
            samplings = [
                sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + i)
                for i in range(request.n)
            ]
            completions = await _gather(self.engine.generate(prompt, one) for one in samplings)
            checked = await self.in_thread(
                lambda: [self._check(prompt, *pair) for pair in zip(samplings, completions, strict=True)]
            )
            return request, prompt, history, checked
        except InvalidRequestError:
            raise
        except UnsupportedGrammar as error:
            raise InvalidRequestError(str(error), param="response_format", code="unsupported_parameter") from error
        except AgentError as error:  # the engine cannot hold a request of this length
            raise InvalidRequestError(str(error), param="messages", code="context_length_exceeded") from error

    def _run_to_completion(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work that survives a canceled caller, so that disk and memory agree; await with `asyncio.shield`."""
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may be gone

    def mark_undelivered(self, session: Session, reply: Reply) -> None:
        """Mark a reply that could not be delivered: its calls are stored and not trained on."""
        session.undelivered_calls |= {call.id for call in reply.calls}

    def close(self) -> None:
        """Stop the worker threads."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self._writers.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, session: Session, request: ChatRequest) -> tuple[ChatRequest, Prompt, set[str]]:
        if request.tools:
            request = replace(request, messages=self.renderer.tools.with_tools(request.messages, request.tools))
        replies = self.renderer.recorded_replies(request.messages)
        known = [one.digest for one in replies if session.reply_index.contains(one)]
        prompt = self.renderer.render(request.messages, self.images, session.reply_index)
        check_prompt(prompt, self.renderer.image_id)
        check_turns(prompt, self.renderer.end_id, self.renderer.turns(request.messages))
        check_history(prompt, [tuple(session.outputs[digest]) for digest in known])
        return request, prompt, session.reply_index.calls_in(request.messages)

    def _check(self, prompt: Prompt, sampling: Sampling, completion: Completion) -> Completion:
        if completion.finish_reason == "aborted":
            raise InfrastructureError("the engine aborted the request; nothing was recorded")
        check_completion(prompt, sampling, completion, sampling.banned_ids, self.renderer.text_of)
        restriction = completion.restriction or sampling.restriction
        return replace(completion, served_ids=prompt.token_ids, restriction=restriction)

    async def _stop_on_violation(self, session: Session, work: Awaitable[T]) -> T:
        try:
            return await work
        except RecordError as error:
            self.violations[error.cause] += 1
            session.stopped = session.stopped or error
            log.error("recorder.violation", session=session.id, cause=error.cause, message=str(error))
            raise

    async def _record(
        self,
        access: SessionAccess,
        request: ChatRequest,
        request_id: str,
        prompt: Prompt,
        completions: list[Completion],
        history: set[str],
        calls: list[Call],
    ) -> tuple[ParsedReply, ...]:
        """Store and add the replies one by one, appending the recorded ones to `calls`."""
        session = access.session
        texts = [self.renderer.text_of(completion.token_ids) for completion in completions]
        parsed = tuple(self._parse(request, text) for text in texts)
        async with session.lock:
            for index, (completion, text) in enumerate(zip(completions, texts, strict=True)):
                session.check_open()
                parent = session.graph.parent_of(prompt.token_ids, prompt.spans, request.sampling.temperature)
                call_id = request_id if request.n == 1 else f"{request_id}.{index}"
                temperature = request.sampling.temperature
                call = Call(
                    call_id, parent, prompt.token_ids, prompt.spans, completion, temperature, text, access.agent
                )
                session.graph.check(call)
                await self._write(self._on_call, session.id, call)
                session.check_open()  # if it was closed meanwhile, its graph was returned without this call
                session.graph.add(call)
                forms = (parsed[index].as_message(), message("assistant", text))
                # Outputs first: other threads render requests that look up the index, then the outputs.
                for form in forms:
                    session.outputs.setdefault(form.digest, set()).add(completion.token_ids)
                session.reply_index.record(request.messages, call, forms)
                calls.append(call)
            session.returned |= history
            key = running_digests(request.messages)[-1] + repr((request.sampling, request.n, access.agent)).encode()
            session.answered.setdefault(key, []).append({call.id for call in calls})
        return parsed

    def _parse(self, request: ChatRequest, text: str) -> ParsedReply:
        return parse_reply(
            text,
            thinking=None if request.thinking == "inline" else "opened" if self.renderer.opens_thinking else "unopened",
            stop_texts=request.sampling.stop_texts,
            tools=request.tools,
            tool_format=self.renderer.tools.format if request.tools else None,
        )

    async def _write(self, write: Callable[..., Any] | None, session_id: str, entry: Any) -> None:
        if write is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._writers, write, session_id, entry)
        except RecordError:
            raise
        except Exception as error:  # a user's callback may raise anything
            raise InfrastructureError(f"session {session_id}: cannot be stored ({error})") from error


async def _gather(work: Iterable[Awaitable[Completion]]) -> list[Completion]:
    """Wait for all, then raise the first error, so that nothing is left running after an error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, Completion)]
