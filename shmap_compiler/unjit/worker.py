"""Converts HLO to StableHLO, in a process of its own.

The converter ends its process on some programs. `conversion.py` starts this file and notices that.
Messages follow their length in eight bytes: an HloModuleProto in; out a byte, 1 for a module and 0
for an error, and the module as MLIR bytecode or the error's text.
"""

from __future__ import annotations

import os
import struct
import sys

from jax.extend import mlir

LENGTH = struct.Struct("<Q")


def _answer(proto: bytes) -> bytes:
    try:
        return b"\1" + mlir.hlo_to_stablehlo(proto)
    except Exception as error:
        return b"\0" + f"{type(error).__name__}: {error}".encode()


def main() -> None:
    """Answers until the input ends."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    stream = sys.stdin.buffer
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        answer = _answer(stream.read(*LENGTH.unpack(head)))
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    main()
