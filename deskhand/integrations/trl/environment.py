"""`TrlDesktop`: Deskhand's tasks for the `environment_factory` of TRL's `GRPOTrainer`.

    GRPOTrainer(model, train_dataset=rows, environment_factory=partial(TrlDesktop, overrides=[...]))

The public methods but `reset` and `get_reward` are the tools that the model calls; each returns the next screen.
TRL calls `reset` with the columns of a row ("family" and "variant" name the task) and reads the reward from
`get_reward`.

Invariant: an outage raises in `get_reward`. TRL would count a missing reward as 0.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from deskhand.actions.ops import REL_1000, Button, Click, Done, Drag, Fail, Key, Op, Point, Scroll, Type, Wait
from deskhand.desktop.base import Frame
from deskhand.errors import ConfigError, DeskhandError, InfrastructureError
from deskhand.recipes.task_session import TaskSession
from deskhand.rollout.stepwise_episode import error_of
from deskhand.tasks.outcome import Errored
from deskhand.tasks.task import Split

Content = list[dict[str, Any]]
"""Parts of a message: `{"type": "image", "image"}` and `{"type": "text", "text"}`."""
OVER = "The episode is over."


class TrlDesktop:
    """One task at a time on one desktop. Arguments are those of `TaskSession`; points are 0..1000 on both axes."""

    def __init__(self, config: str | Path | None = None, overrides: Sequence[str] = (), split: Split = "train") -> None:
        self._session = TaskSession(config, overrides, split)
        self._outage: DeskhandError | None = None
        self._close = weakref.finalize(self, self._session.close)

    def reset(self, family: str | None = None, variant: int = 0, **columns: Any) -> Content:
        """Start the task of a row and return its instruction and first screen. Raises `ConfigError`, and
        `InfrastructureError` if no desktop starts."""
        self._outage = None
        frame = self._session.start(self._session.task(family or self._session.families[0], int(variant)))
        return [*_shown(frame), {"type": "text", "text": self._session.episode.context.instruction}]

    def click(self, x: int, y: int, button: str = "left", count: int = 1) -> Content:
        """Click at a point of the screen.

        Args:
            x: Position from the left, 0 to 1000.
            y: Position from the top, 0 to 1000.
            button: Mouse button: left, middle or right.
            count: Number of clicks, 2 for a double click.

        Returns:
            The screen that follows.
        """
        buttons: dict[str, Button] = {"left": "left", "middle": "middle", "right": "right"}
        if button not in buttons:
            return _text(f"button must be left, middle or right, not {button!r}")
        return self._act(Click(_point(x, y), buttons[button], int(count)))

    def drag(self, x: int, y: int, end_x: int, end_y: int) -> Content:
        """Drag from one point of the screen to another with the left mouse button.

        Args:
            x: Start from the left, 0 to 1000.
            y: Start from the top, 0 to 1000.
            end_x: End from the left, 0 to 1000.
            end_y: End from the top, 0 to 1000.

        Returns:
            The screen that follows.
        """
        return self._act(Drag((_point(x, y), _point(end_x, end_y))))

    def scroll(self, x: int, y: int, down: int) -> Content:
        """Turn the mouse wheel at a point of the screen.

        Args:
            x: Position from the left, 0 to 1000.
            y: Position from the top, 0 to 1000.
            down: Notches downwards; negative is upwards.

        Returns:
            The screen that follows.
        """
        return self._act(Scroll(0, int(down), _point(x, y)))

    def type_text(self, text: str) -> Content:
        """Type text into the focused window.

        Args:
            text: The text; a line feed presses Enter.

        Returns:
            The screen that follows.
        """
        return self._act(Type(str(text)))

    def press_keys(self, keys: str) -> Content:
        """Press a key or a combination of keys.

        Args:
            keys: Names joined by a plus sign, such as enter or ctrl+s.

        Returns:
            The screen that follows.
        """
        return self._act(Key(tuple(str(keys).lower().split("+"))))

    def wait(self, seconds: float) -> Content:
        """Wait, and look at the screen again.

        Args:
            seconds: Time to wait.

        Returns:
            The screen that follows.
        """
        return self._act(Wait(float(seconds)))

    def finish(self) -> Content:
        """Report that the task is done, which ends the episode.

        Returns:
            That the episode is over.
        """
        return self._act(Done())

    def give_up(self, reason: str) -> Content:
        """Report that the task is impossible, which ends the episode.

        Args:
            reason: Why it is impossible.

        Returns:
            That the episode is over.
        """
        return self._act(Fail(str(reason)))

    def get_reward(self) -> float:
        """Return the judge's reward, with milestones; an episode that still runs is ended first.

        Raises `InfrastructureError`, `EvaluatorError` or `CodeError` for an outage.
        """
        if self._session.is_running and self._outage is None:
            self._act(Done())
        if self._outage is not None:
            raise self._outage
        result = self._session.episode.result
        assert result is not None
        if isinstance(result.outcome, Errored):
            raise error_of(result.outcome, self._session.episode.task)
        assert result.reward is not None
        return float(result.reward)

    def _act(self, op: Op) -> Content:
        if not self._session.is_running:
            return _text(OVER)
        try:
            frame = self._session.step(op)
        except ConfigError:
            raise
        except DeskhandError as error:  # TRL hands a tool's exception to the model and goes on
            self._outage = error
            raise InfrastructureError(str(error)) from error
        if not self._session.is_running:
            return _text(OVER)
        problem = self._session.episode.error
        return [*_shown(frame), *(_text(f"error: {problem}") if problem else [])]


def _point(x: float, y: float) -> Point:
    return Point(float(x), float(y), REL_1000)


def _text(text: str) -> Content:
    return [{"type": "text", "text": text}]


def _shown(frame: Frame) -> Content:
    return [{"type": "image", "image": Image.fromarray(frame.rgb())}]
