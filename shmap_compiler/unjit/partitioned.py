"""What XLA's partitioner made of a jitted program."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shmap_compiler.explain.replica_groups import Groups, groups_of_text

_AFTER = re.compile(r"\.after_(?:tpu-)?spmd-partitioning\.")
_COLLECTIVE = re.compile(r"\bchannel_id=(\d+), replica_groups=(.*)")


@dataclass(frozen=True)
class Partitioned:
    """A compiled program, and its HLO as the partitioner left it.

    Attributes:
      compiled: the program.
      proto: the HloModuleProto.
      text: the same as text, which has what the conversion to StableHLO loses.
    """

    compiled: jax.stages.Compiled
    proto: bytes
    text: str

    def groups(self, device_count: int) -> Mapping[int, Groups]:
        """The groups of each collective, by its channel.

        Raises:
          ValueError: some are written in a way that is not known.
        """
        found: dict[int, Groups] = {}
        for channel, groups in _COLLECTIVE.findall(self.text):
            found[int(channel)] = groups_of_text(groups, device_count)
        return found


class NotPartitioned(Exception):
    """XLA compiled the program without its partitioner."""


def partition(lowered: jax.stages.Lowered) -> Partitioned:
    """Compiles a program and keeps what its partitioner made of it.

    Raises:
      NotPartitioned: the program runs on one device.
    """
    with tempfile.TemporaryDirectory(prefix="shmap_") as folder:
        options: dict[str, Any] = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_proto": True,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
        }
        compiled = lowered.compile(compiler_options=options)
        files = [path for path in Path(folder).iterdir() if _AFTER.search(path.name)]
        protos = sorted(path for path in files if path.name.endswith(".hlo.pb"))
        texts = sorted(path for path in files if path.name.endswith(".txt"))
        if not protos or not texts:
            raise NotPartitioned
        return Partitioned(compiled, _module_of(protos[-1].read_bytes()), texts[-1].read_text())


def _module_of(proto: bytes) -> bytes:
    """The HloModuleProto in an HloProto: its field 1, which stands first."""
    assert proto[:1] == b"\x0a", "an HloProto begins with its module"
    length, shift, at = 0, 0, 1
    while True:
        byte = proto[at]
        length |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return proto[at : at + length]
