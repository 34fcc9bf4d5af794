"""POSIX access control lists of folders (POSIX draft 1003.1e), stored in Linux extended attributes.

Used by `isolation`; start with `grant_group`. The attribute layout is defined in linux/posix_acl_xattr.h.

Invariant: existing entries are preserved, so no other user's or group's rights change.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_OWNER, _OWNING_GROUP, _GROUP, _MASK, _OTHER = 0x01, 0x04, 0x08, 0x10, 0x20
_NOBODY = 0xFFFFFFFF
READ_AND_ENTER = 5


def grant_group(path: str, group: int, rights: int) -> None:
    """Set the rights of `group` on a folder to exactly `rights`, even if others have more. Raises `OSError`."""
    entries = _entries(path)
    if entries.get((_GROUP, group)) == rights:
        return
    entries[_GROUP, group] = rights
    entries.setdefault((_MASK, _NOBODY), entries[_OWNING_GROUP, _NOBODY] | rights)
    packed = b"".join(_ENTRY.pack(tag, bits, who) for (tag, who), bits in sorted(entries.items()))
    os.setxattr(path, _ATTRIBUTE, _VERSION.pack(2) + packed)


def _entries(path: str) -> dict[tuple[int, int], int]:
    """Return rights by (tag, id), from the file mode if the folder has no access control list."""
    try:
        data = os.getxattr(path, _ATTRIBUTE)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        mode = stat.S_IMODE(os.stat(path).st_mode)
        return {(_OWNER, _NOBODY): mode >> 6 & 7, (_OWNING_GROUP, _NOBODY): mode >> 3 & 7, (_OTHER, _NOBODY): mode & 7}
    return {(tag, who): bits for tag, bits, who in _ENTRY.iter_unpack(data[_VERSION.size :])}
