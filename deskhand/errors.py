"""The error taxonomy. Invariant: every error says who pays for it.

| error                 | who pays                                                          |
|-----------------------|-------------------------------------------------------------------|
| `InfrastructureError` | nobody: the episode is unscored and masked from training          |
| `EvaluatorError`      | nobody: the episode is unscored and masked from training          |
| `AgentError`          | the agent: the episode goes on or is scored on its end state      |
| `RecordError`         | the sample: it is stopped, counted by cause and never trained     |
| `ConfigError`         | the user: the run stops before it starts, exit code 2, one line   |
| `HealthError`         | the run: it stops, and what was trained until then is kept        |

Messages are one line and name the file, key, package or endpoint, and then the mend.
"""

from __future__ import annotations


class DeskhandError(Exception):
    """Base of everything that Deskhand raises on purpose."""


class ConfigError(DeskhandError):
    """Wrong input from the user. Printed as one line; the command exits with code 2."""


class HealthError(DeskhandError):
    """To go on training would be in vain: the model does not see. The last checkpoint and all episodes are kept."""


class InfrastructureError(DeskhandError):
    """A desktop, engine or disk failed. The episode is `Unscored("infrastructure")`, never zero."""


class DeliveryUnknown(InfrastructureError):
    """An action may or may not have been performed. It is never retried blindly."""


class FrameError(InfrastructureError):
    """A frame is stale, black, truncated or of the wrong size. It never reaches a model."""


class EvaluatorError(DeskhandError):
    """The judge itself failed. The episode is `Unscored("evaluator")`, never zero."""


class AgentError(DeskhandError):
    """The model did something that cannot be performed (an unknown action, a point off the screen)."""


class ParseError(AgentError):
    """Model text that a dialect does not understand.

    `span` is the half-open range of characters in the text that was not understood, `reason` one sentence.
    """

    def __init__(self, span: tuple[int, int], reason: str) -> None:
        super().__init__(f"characters {span[0]}-{span[1]}: {reason}")
        self.span = span
        self.reason = reason


class RecordError(DeskhandError):
    """A recorder invariant was violated. `cause` is a short stable word used for counting."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(f"{cause}: {message}")
        self.cause = cause
