"""Reward functions in processes of their own.

`ProcessReward` runs any function, which may block, leak or be killed; a task's check awaits it: `return
CheckResult(await ProcessReward(read_state, timeout_s=60)(path))`. `PureReward` is for pure functions: they may be
retried, and inside AReaL its `AsyncRewardWrapper` runs them. That wrapper returns 0 on timeouts; here a timeout is an
error. Functions and arguments must be picklable and importable.

Invariant: a reward that times out, crashes or raises is an `EvaluatorError`, never a number.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from deskhand.errors import ConfigError, EvaluatorError
from deskhand.integrations.areal import installed_areal, reward_worker


def qualified_name(function: Any) -> str:
    """Return module and name, for messages."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _pickled(value: Any, name: str) -> bytes:
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"{name}: cannot be pickled ({error}); use a module-level function") from None


class ProcessReward:
    """`await reward(*arguments, **named)` returns `function(*arguments, **named)` as a float.

    After `timeout_s` the process and its children are killed. Leave `max_retries` 0 if the function changes what it
    inspects. Raises `ConfigError` if no other process can import the function.
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float, max_retries: int = 0) -> None:
        if not (math.isfinite(timeout_s) and timeout_s > 0 and max_retries >= 0):
            raise ConfigError(
                f"reward: timeout_s must be positive and max_retries at least 0, got {timeout_s} and {max_retries}"
            )
        self.function, self.name = function, qualified_name(function)
        self.timeout_s, self.max_retries = timeout_s, max_retries
        if not callable(function):
            raise ConfigError(f"reward: not callable: {function!r}")
        if getattr(function, "__module__", None) == "__main__":
            raise ConfigError(f"{self.name}: other processes cannot import it from __main__; move it to a module")
        _pickled(function, self.name)

    async def __call__(self, *arguments: Any, **named: Any) -> float:
        """Raises `EvaluatorError` without a finite number; kills the process on cancellation."""
        payload = pickle.dumps(sys.path) + _pickled((self.function, arguments, named), self.name)
        for _ in range(self.max_retries):
            with suppress(EvaluatorError):
                return await self._once(payload)
        return await self._once(payload)

    async def _once(self, payload: bytes) -> float:
        words, pipe = [sys.executable, "-P", reward_worker.__file__], asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, start_new_session=True)
        try:
            async with asyncio.timeout(self.timeout_s):
                out, _ = await process.communicate(payload)
        except TimeoutError:
            raise EvaluatorError(f"reward {self.name}: timed out after {self.timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        try:
            found = json.loads(out)
        except ValueError:
            raise EvaluatorError(f"reward {self.name}: exited with {process.returncode} without a result") from None
        if "error" in found:
            raise EvaluatorError(f"reward {self.name}: {found['error']}")
        return _finite(found["value"], self.name)


def _boxed(function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[float]:
    """A tuple tells the function's own result from the wrapper's 0 on timeout."""
    return (float(function(*arguments, **named)),)


class PureReward(ProcessReward):
    """`ProcessReward` for functions without side effects, retried on failure.

    `reward` may be an `AsyncRewardWrapper`, whose settings then apply.
    """

    def __init__(
        self, reward: Any, *, timeout_s: float = 15.0, max_retries: int = 3, workers: int | None = None
    ) -> None:
        if hasattr(reward, "reward_fn"):
            timeout_s, max_retries, workers = reward.timeout_seconds, reward.max_retries, reward.max_workers
            reward = reward.reward_fn
        super().__init__(reward, timeout_s=timeout_s, max_retries=max_retries)
        self._wrapper: Any = None
        if installed_areal.is_running():
            kind = installed_areal.require_areal("api.reward_api", "a reward").AsyncRewardWrapper
            self._wrapper = kind(
                partial(_boxed, reward), timeout_seconds=timeout_s, max_workers=workers, max_retries=max_retries
            )

    async def __call__(self, *arguments: Any, **named: Any) -> float:
        """Raises `EvaluatorError` without a finite number after all attempts."""
        if self._wrapper is None:
            return await super().__call__(*arguments, **named)
        try:
            found = await self._wrapper(*arguments, **named)
        except Exception as error:
            raise EvaluatorError(f"reward {self.name}: raised {type(error).__name__}: {error}") from error
        if not isinstance(found, tuple):
            attempts = self.max_retries + 1
            raise EvaluatorError(f"reward {self.name}: timed out after {self.timeout_s:g} s, {attempts} times")
        return _finite(found[0], self.name)


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise EvaluatorError(f"reward {name}: returned {value}, expected a finite number")
    return float(value)
