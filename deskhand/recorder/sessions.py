"""Open sessions and their API keys.

Used by `recorder.recorder` and `recorder.recording_proxy` as `SessionRegistry`. A session expires after `idle_s`
seconds without a request; its calls are kept until it is closed.

Invariant: a key belongs to one session and one of its agents, is stored as a hash only, and is invalid once the session
is closed or expired.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from deskhand.errors import RecordError
from deskhand.recorder.graph import CallGraph
from deskhand.recorder.messages import Message
from deskhand.recorder.reply_index import ReplyIndex
from deskhand.recorder.request_errors import InvalidRequestError
from deskhand.recorder.rewards import Rewards

MAX_NAME = 200


@dataclass
class Session:
    """One episode's calls. `stopped` is the violation that stopped it, if any."""

    id: str
    graph: CallGraph = field(default_factory=CallGraph)
    reply_index: ReplyIndex = field(init=False)
    rewards: Rewards = field(default_factory=Rewards)
    stopped: RecordError | None = None
    ended: bool = False
    expired: bool = False
    calls: list[str] = field(default_factory=list)
    """Ids of exchanges stored by a recording proxy; a recorder's calls are in `graph`."""
    requests: int = 0
    in_flight: int = 0
    last_used: float = 0.0
    key_digests: set[bytes] = field(default_factory=set, repr=False)
    answered: dict[bytes, list[set[str]]] = field(default_factory=dict)
    """Call ids by request contents, in order; several sets mean that the request was repeated."""
    outputs: dict[bytes, set[tuple[int, ...]]] = field(default_factory=dict)
    """Sampled token ids by the digest of the assistant message returned for them."""
    conversations: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    """Messages and reply of stored responses, by response id."""
    returned: set[str] = field(default_factory=set)
    """Calls whose reply was sent back as history."""
    undelivered_calls: set[str] = field(default_factory=set)
    """Calls whose client disconnected, or whose request failed in another reply."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.reply_index = ReplyIndex(self.graph.get)

    def superseded_calls(self) -> set[str]:
        """Return the calls whose request was repeated later and whose reply was never used as history."""
        earlier = {call_id for times in self.answered.values() for call_ids in times[:-1] for call_id in call_ids}
        return earlier - self.returned

    def check_open(self) -> None:
        """Raise `InvalidRequestError` if the session is stopped, closed or expired."""
        if self.stopped is not None:
            raise InvalidRequestError(
                f"session {self.id} was stopped: {self.stopped}", code="session_stopped", status=409
            )
        if self.ended or self.expired:
            word = "ended" if self.ended else "expired"
            raise InvalidRequestError(f"session {self.id} has {word}", code=f"session_{word}", status=409)


@dataclass(frozen=True, slots=True)
class SessionAccess:
    """Session and agent (empty: the first) that a key gives access to."""

    session: Session
    agent: str = ""


class SessionRegistry:
    """Sessions by id and by key. With `idle_s` None they never expire; `clock` is monotonic."""

    def __init__(self, idle_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.idle_s, self._clock = idle_s, clock
        self._sessions: dict[str, Session] = {}
        self._by_key: dict[bytes, SessionAccess] = {}
        self.expired = 0
        """Number of sessions that expired."""

    def open(self, session_id: str) -> str:
        """Open a session and return its key. Raises `InvalidRequestError` if the id is in use."""
        self.expire_idle()
        check_name(session_id, "session_id")
        if session_id in self._sessions:
            raise InvalidRequestError(
                f"session {session_id} is already open", param="session_id", code="session_open", status=409
            )
        session = self._sessions[session_id] = Session(session_id, last_used=self._clock())
        return self.new_key(session)

    def new_key(self, session: Session, agent: str = "") -> str:
        """Return another key of an open session, for one of its agents."""
        session.check_open()
        if agent:
            check_name(agent, "agent")
        key = "sk-" + secrets.token_urlsafe(32)
        digest = _digest(key)
        session.key_digests.add(digest)
        self._by_key[digest] = SessionAccess(session, agent)
        return key

    def find(self, key: str) -> SessionAccess | None:
        """Return what a key gives access to, if anything. The lookup by SHA-256 leaks no timing information."""
        access = self._by_key.get(_digest(key))
        if access is None:
            return None
        if self._is_idle(access.session):
            self._expire(access.session)
            return None
        access.session.last_used = self._clock()
        return access

    def get(self, session_id: str) -> Session:
        """Return a session that is not closed. Raises `InvalidRequestError`."""
        if session_id not in self._sessions:
            raise InvalidRequestError(
                f"no session {session_id[:MAX_NAME]} is open", param="session_id", code="session_unknown", status=404
            )
        return self._sessions[session_id]

    def close(self, session_id: str) -> Session:
        """Remove a session and revoke its keys. Raises `InvalidRequestError`."""
        session = self.get(session_id)
        del self._sessions[session_id]
        self._forget_keys(session)
        session.ended = True
        return session

    def expire_idle(self) -> None:
        """Expire idle sessions."""
        for session in list(self._sessions.values()):
            if self._is_idle(session):
                self._expire(session)

    def now(self) -> float:
        """Return the time of the expiry clock."""
        return self._clock()

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def _is_idle(self, session: Session) -> bool:
        waiting = not (session.expired or session.in_flight)
        return self.idle_s is not None and waiting and self._clock() - session.last_used > self.idle_s

    def _expire(self, session: Session) -> None:
        session.expired = True
        self.expired += 1
        self._forget_keys(session)

    def _forget_keys(self, session: Session) -> None:
        for digest in session.key_digests:
            self._by_key.pop(digest, None)
        session.key_digests.clear()


def check_name(name: str, param: str) -> None:
    """Raise `InvalidRequestError` unless a name is 1 to 200 printable characters."""
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidRequestError(f"{param} must be 1 to {MAX_NAME} printable characters", param=param)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
