"""An interpreter of seccomp programs, for calls that must not be made and for other architectures than this one."""

from __future__ import annotations

import struct

_ALLOW, _ERRNO, _ACTION = 0x7FFF0000, 0x00050000, 0xFFFF0000


def errno_of(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """The errno that a call gets, 0 if it is allowed. The names are those of linux/bpf_common.h."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(each % 2**64 for each in padded))
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = instructions[position]
        position += 1
        match code:
            case 0x20:  # BPF_LD | BPF_W | BPF_ABS
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                position += if_true if accumulator == value else if_false
            case 0x35:  # BPF_JMP | BPF_JGE | BPF_K
                position += if_true if accumulator >= value else if_false
            case 0x45:  # BPF_JMP | BPF_JSET | BPF_K
                position += if_true if accumulator & value else if_false
            case 0x06:  # BPF_RET | BPF_K
                assert value & _ACTION == _ERRNO or value == _ALLOW, hex(value)
                return value - _ERRNO if value & _ACTION == _ERRNO else 0
            case _:
                raise AssertionError(f"unknown instruction {code:#x}")
