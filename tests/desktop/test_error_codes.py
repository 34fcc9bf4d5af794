"""Errors keep their class between a desktop server and its client."""

from __future__ import annotations

import pytest

from deskhand.desktop.frame_codec import ERRORS, error_code, error_from_reply
from deskhand.errors import AgentError, DeliveryUnknown, FrameError, GuestFailure, InfrastructureError


@pytest.mark.parametrize("kind", [AgentError, DeliveryUnknown, FrameError, GuestFailure, InfrastructureError])
def test_an_error_has_the_same_class_at_the_client(kind: type[Exception]) -> None:
    code = error_code(kind("openbox has exited"))
    assert code is not None
    error = error_from_reply({"error": code, "message": "openbox has exited"}, ERRORS[code][0], "POST /perform")
    assert (type(error), str(error)) == (kind, "openbox has exited")


def test_a_reply_that_names_no_code_is_no_evidence_against_guests() -> None:
    for body in ({}, {"error": "guests"}, "guest", None):
        assert type(error_from_reply(body, 500, "POST /perform")) is InfrastructureError
