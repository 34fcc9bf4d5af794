"""Readers of mails and of the marks that Claws Mail keeps; `basics.mail` runs them with `subprocess_call`.

Every reader takes bytes, returns JSON values and raises `InvalidDocument`.
"""

from __future__ import annotations

import email
import email.policy
import re
import struct
from email.utils import getaddresses
from typing import Any

from deskhand.tasks.document_readers import InvalidDocument, parsing

MARKS_VERSION = 2
MARKED = 4
"""The flag of a mail that the user marked (`MSG_MARKED` in Claws Mail's source)."""
_RECIPIENTS = ("to", "cc", "bcc", "r")
"""Claws Mail lists in R who gets a mail that it queues."""
_QUOTED = re.compile(r"(^On .*\n.* wrote:$)|(^>.*$)", re.MULTILINE)


def mail_facts(data: bytes) -> dict[str, Any]:
    """Return the recipients' addresses, subject, own text without quotes, answered mail and number of parts."""
    with parsing("mail"):
        message = email.message_from_bytes(data, policy=email.policy.compat32)
        found = getaddresses([str(text) for name in _RECIPIENTS for text in message.get_all(name, [])])
        parts = [part for part in message.walk() if not part.is_multipart()]
        payload = parts[0].get_payload(decode=True) if parts else b""
        text = payload.decode("utf-8", errors="replace") if isinstance(payload, bytes) else ""
        return {
            "to": sorted({address.lower() for _, address in found}),
            "subject": str(message.get("subject", "")),
            "text": " ".join(_QUOTED.sub("", text.replace("\r", "")).split()),
            "answers": str(message.get("in-reply-to", "")).strip(),
            "parts": len(parts),
        }


def marked_mails(data: bytes) -> list[int]:
    """Return the numbers of a folder's marked mails, from `.claws_mark`: a version, then pairs of number and flags."""
    if len(data) % 8 != 4 or struct.unpack_from("<I", data)[0] != MARKS_VERSION:
        raise InvalidDocument("no file of marks")
    return [number for number, flags in struct.iter_unpack("<II", data[4:]) if flags & MARKED]
