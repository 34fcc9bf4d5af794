"""What a request can be refused for. Invariant: a refusal names the parameter and is the caller's to mend; nothing was sampled."""

from __future__ import annotations

from deskhand.errors import AgentError


class InvalidRequestError(AgentError):
    """A request that cannot be served exactly as it was asked.

    `status` is the HTTP status, `param` the path of the offending parameter (None for the whole request) and `code` a short
    stable word. `code` "context_length_exceeded" means that the conversation has outgrown the model.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str = "invalid_request", status: int = 400
    ) -> None:
        self.message = _encodable(message)
        super().__init__(self.message)
        self.param = param and _encodable(param)
        self.code = code
        self.status = status


def _encodable(text: str) -> str:
    """The text with what has no UTF-8 (half a surrogate pair of the request) written as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
