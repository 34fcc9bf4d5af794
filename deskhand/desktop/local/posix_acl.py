"""Access lists of folders (POSIX draft 1003.1e, as Linux keeps them). Invariant: an entry is added beside those that
are there, and nobody else's rights change.

The layout of the attribute is that of linux/posix_acl_xattr.h.
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
    """Let members of `group` have `rights` to a folder and no others, whatever everybody has. Raises `OSError`."""
    entries = _entries(path)
    if entries.get((_GROUP, group)) == rights:
        return
    entries[_GROUP, group] = rights
    entries.setdefault((_MASK, _NOBODY), entries[_OWNING_GROUP, _NOBODY] | rights)
    packed = b"".join(_ENTRY.pack(tag, bits, who) for (tag, who), bits in sorted(entries.items()))
    os.setxattr(path, _ATTRIBUTE, _VERSION.pack(2) + packed)


def _entries(path: str) -> dict[tuple[int, int], int]:
    """Rights by (tag, id): those of the list, or of the mode where there is no list."""
    try:
        data = os.getxattr(path, _ATTRIBUTE)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        mode = stat.S_IMODE(os.stat(path).st_mode)
        return {(_OWNER, _NOBODY): mode >> 6 & 7, (_OWNING_GROUP, _NOBODY): mode >> 3 & 7, (_OTHER, _NOBODY): mode & 7}
    return {(tag, who): bits for tag, bits, who in _ENTRY.iter_unpack(data[_VERSION.size :])}
