"""Exception classes, by who bears the consequence.

| error                 | consequence                                                        |
|-----------------------|--------------------------------------------------------------------|
| `InfrastructureError` | the episode is errored and masked from training                    |
| `GuestFailure`        | scored 0 once the agent has acted; before, like its base class     |
| `EvaluatorError`      | the episode is errored and masked from training                    |
| `CodeError`           | a few episodes with a mistake in the code end the run              |
| `AgentError`          | the agent gets feedback, or is scored on the end state             |
| `RecordError`         | the sample is dropped and counted by cause                         |
| `ConfigError`         | the command stops before it starts, with one line and exit code 2  |
| `HealthError`         | the run stops; its checkpoints and episodes are kept               |

A message is one line: the file, key, package or endpoint first, then what is wrong, then the fix.
"""

from __future__ import annotations


class DeskhandError(Exception):
    """Base class of every error that Deskhand raises."""


class ConfigError(DeskhandError):
    """Invalid user input. Printed as one line; the command exits with code 2."""


class HealthError(DeskhandError):
    """The run cannot improve, e.g. because the policy ignores its screenshots. Checkpoints and episodes are kept."""


class InfrastructureError(DeskhandError):
    """A desktop, engine or disk failed. The episode is `Errored("infrastructure")`, never scored 0."""


class GuestFailure(InfrastructureError):
    """Programs of the guest broke their own desktop: they killed a part of it, exceeded a limit, or hold the X server.

    Raised only with evidence (an exit status, a report of the resource monitor, an idle X server that does not
    answer). Nothing but the agent acts in a guest, so an episode in which it has acted is scored 0.
    """


class DeliveryUnknown(InfrastructureError):
    """An action may or may not have been performed. It is not retried automatically."""


class FrameError(InfrastructureError):
    """A frame is stale, black, truncated or of the wrong size. It is never sent to a model."""


class EvaluatorError(DeskhandError):
    """The evaluator failed. The episode is `Errored("evaluator")`, never scored 0."""


class CodeError(DeskhandError):
    """A mistake in Deskhand's code or a plug-in's. The episode is `Errored("bug")`; a few of them end the run."""


class AgentError(DeskhandError):
    """The model requested an action that cannot be performed, e.g. a point outside the screen."""


class ParseError(AgentError):
    """Model output that an action format cannot parse.

    `span` is the half-open character range at fault, `reason` one sentence.
    """

    def __init__(self, span: tuple[int, int], reason: str) -> None:
        super().__init__(f"characters {span[0]}-{span[1]}: {reason}")
        self.span = span
        self.reason = reason


class RecordError(DeskhandError):
    """A recorder invariant was violated. `cause` is a short, stable identifier used for counting."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(f"{cause}: {message}")
        self.cause = cause
