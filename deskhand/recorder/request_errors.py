"""Error of requests that the recorder rejects. Raised by the whole package, handled in `recorder.http_common`."""

from __future__ import annotations

from deskhand.errors import AgentError


class InvalidRequestError(AgentError):
    """A request that cannot be served exactly; nothing was sampled.

    `status` is the HTTP status, `param` the path of the invalid parameter (None: the whole request), `code` a short
    stable identifier. With code "context_length_exceeded" the conversation is too long for the model.
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
    """Return the text with unpaired surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
