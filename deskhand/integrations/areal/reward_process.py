"""Judges outside of the event loop. Invariant: what comes back is what the judge said; a judge that is late, dies or raises gives
no number, and one that changes what it judges is asked once.

`OutsideJudge` runs an ordinary function in a process of its own, so a judge may block, may be ended in the middle, and may leak.
Within a task, a check awaits it: `return Check(await OutsideJudge(read_ledger, timeout_s=60)(path))`; the episode of a judge that
failed is then unscored.

`PureReward` is for functions that only compute: they may be repeated, and inside of AReaL its own `AsyncRewardWrapper` runs them.
That one returns the integer 0 for a function that was late each time, like any other reward; here this is an error. A `PureReward`
can be made of an `AsyncRewardWrapper` that is there already.

Outside of the event loop also means outside of this process: functions and arguments must be picklable, and functions are found
again by the name of their module.
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
from pathlib import Path
from typing import Any

from deskhand.errors import ConfigError, EvaluatorError
from deskhand.integrations.areal import installed_areal, reward_worker


def name_of(function: Any) -> str:
    """Module and name, for people."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _pickled(what: Any, name: str) -> bytes:
    try:
        return pickle.dumps(what)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{name} cannot be sent to another process ({error}); make it a function of a module"
        ) from None


class ProcessReward:
    """`await judge(*arguments, **named)` is what `function(*arguments, **named)` returns, as a float.

    `timeout_s`: after it the judge's process and those that it started are ended. `repeats`: how often a judge that failed is asked
    again; leave it 0 for one that changes what it looks at. Raises `ConfigError` for a function that no other process can find.
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float, repeats: int = 0) -> None:
        if not (math.isfinite(timeout_s) and timeout_s > 0 and repeats >= 0):
            raise ConfigError(
                f"a judge with timeout_s {timeout_s} and repeats {repeats}; both are numbers, the first above 0"
            )
        self.function, self.timeout_s, self.repeats, self.name = function, timeout_s, repeats, name_of(function)
        if not callable(function):
            raise ConfigError(f"a judge that is {function!r}, which is no function")
        if getattr(function, "__module__", None) == "__main__":
            raise ConfigError(
                f"{self.name} is of the program itself, where no other process finds it; move it to a module"
            )
        _pickled(function, self.name)

    async def __call__(self, *arguments: Any, **named: Any) -> float:
        """Raises `EvaluatorError` when there is no finite number; a cancelled judge is ended first."""
        payload = pickle.dumps(sys.path) + _pickled((self.function, arguments, named), self.name)
        for _ in range(self.repeats):
            with suppress(EvaluatorError):
                return await self._once(payload)
        return await self._once(payload)

    async def _once(self, payload: bytes) -> float:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(Path(reward_worker.__file__)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                out, _ = await process.communicate(payload)
        except TimeoutError:
            raise EvaluatorError(f"the judge {self.name} took longer than {self.timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        try:
            found = json.loads(out)
        except ValueError:
            raise EvaluatorError(
                f"the judge {self.name} ended with code {process.returncode} and said nothing"
            ) from None
        if "error" in found:
            raise EvaluatorError(f"the judge {self.name}: {found['error']}")
        return _finite(found["value"], self.name)


def _boxed(function: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[float]:
    """A reward in a tuple, which nothing but the function itself makes."""
    return (float(function(*arguments, **named)),)


class PureReward(ProcessReward):
    """`await reward(*arguments, **named)`: a function that computes a reward from its arguments and changes nothing.

    Inside of AReaL by its `AsyncRewardWrapper`, otherwise by `OutsideJudge`, with the same time for each attempt and as many
    repeats. `reward` may be such a wrapper already, whose settings then hold.
    """

    def __init__(self, reward: Any, *, timeout_s: float = 15.0, repeats: int = 3, workers: int | None = None) -> None:
        if hasattr(reward, "reward_fn"):
            timeout_s, repeats, workers = reward.timeout_seconds, reward.max_retries, reward.max_workers
            reward = reward.reward_fn
        super().__init__(reward, timeout_s=timeout_s, repeats=repeats)
        self._wrapper: Any = None
        if installed_areal.is_running():
            kind = installed_areal.require_areal("api.reward_api", "a reward").AsyncRewardWrapper
            self._wrapper = kind(
                partial(_boxed, reward), timeout_seconds=timeout_s, max_workers=workers, max_retries=repeats
            )

    async def __call__(self, *arguments: Any, **named: Any) -> float:
        """Raises `EvaluatorError` when there is no finite number after all attempts."""
        if self._wrapper is None:
            return await super().__call__(*arguments, **named)
        try:
            found = await self._wrapper(*arguments, **named)
        except Exception as error:
            raise EvaluatorError(f"the reward {self.name} raised {type(error).__name__}: {error}") from error
        if not isinstance(found, tuple):
            attempts = self.repeats + 1
            raise EvaluatorError(f"the reward {self.name} took longer than {self.timeout_s:g} s, {attempts} times")
        return _finite(found[0], self.name)


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise EvaluatorError(f"the judge {name} gave {value}, which is no number to train on")
    return float(value)
