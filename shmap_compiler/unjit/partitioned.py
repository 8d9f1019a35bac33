"""What XLA's partitioner made of a jitted program."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax import lax

from shmap_compiler.base.untyped import AnyValue, Function, PyTree, Setting
from shmap_compiler.base.values import input_type
from shmap_compiler.explain.replica_groups import AlongAxes, Groups, along_axes, groups_of_text
from shmap_compiler.stages.any_function import lower_function
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target

_T = TypeVar("_T")

_AFTER = re.compile(r"\.after_(?:tpu-)?spmd-partitioning\.")
_COLLECTIVE = re.compile(r"\bchannel_id=(\d+), replica_groups=(.*)")


@dataclass(frozen=True)
class Partitioned:
    """The HLO of a compiled program as the partitioner left it.

    Attributes:
      proto: the HloModuleProto.
      text: the same as text, which has what the conversion to StableHLO loses.
      kept: the positions of the arguments, flat, that it takes.
    """

    proto: bytes
    text: str
    kept: tuple[int, ...]

    def groups(self, device_count: int) -> Mapping[tuple[int, AlongAxes], Groups]:
        """The devices of groups that are named by axes, by the collective's channel and the names.

        Neither alone tells them: the collectives of a manual region share one channel, and meshes
        with axes of the same names may have their devices in different orders.

        Raises:
          ValueError: both are the same for different groups.
        """
        found: dict[tuple[int, AlongAxes], Groups] = {}
        for channel, text in _COLLECTIVE.findall(self.text):
            named = along_axes(text)
            if named is None:
                continue
            groups = groups_of_text(text, device_count)
            if found.setdefault((int(channel), named), groups) != groups:
                raise ValueError(
                    f"collectives of one channel on two orders of the devices of {dict(named.mesh)}"
                )
        return found


class NotPartitioned(Exception):
    """XLA compiled the program without its partitioner."""


def partition(lowered: jax.stages.Lowered) -> tuple[jax.stages.Compiled, Partitioned]:
    """Compiles a program and keeps what its partitioner made of it.

    Raises:
      NotPartitioned: the program runs on one device.
    """
    compiled, made = _dumped(lambda options: lowered.compile(compiler_options=options))
    tree = jax.tree.structure(compiled.args_info)
    shardings = tree.flatten_up_to(compiled.input_shardings)
    kept = tuple(k for k, sharding in enumerate(shardings) if sharding is not None)
    return compiled, Partitioned(*made, kept)


def partition_for(
    target: Target,
    jitted: Function,
    args: Sequence[PyTree],
    compiled: jax.stages.Compiled,
    progress: Callable[[str], None],
) -> Partitioned:
    """What the partitioner of a target makes of a program.

    Args:
      compiled: the program, compiled for the devices of its shardings; those of its results are
        kept.
      progress: called with the name of each phase as it begins.

    Raises:
      TargetError: the program does not fit the target.
      NotPartitioned: the program runs on one device.
    """
    program = portable_of(jitted, args, compiled, target.platform)
    _, made = _dumped(lambda options: program.compile(target, progress, compiler_options=options))
    return Partitioned(*made, tuple(program.kept))


def portable_of(
    jitted: Function,
    args: Sequence[PyTree],
    compiled: jax.stages.Compiled,
    platform: str,
) -> Portable:
    """A program for the devices of a platform, with the shardings that it is compiled with here."""
    leaves, tree = jax.tree.flatten(tuple(args))
    inputs: Any = compiled.input_shardings
    types = [
        input_type(leaf, sharding)
        for leaf, sharding in zip(leaves, tree.flatten_up_to(inputs[0]), strict=True)
    ]

    def placed(*given: AnyValue) -> PyTree:
        return lax.with_sharding_constraint(jitted(*given), compiled.output_shardings)

    functools.update_wrapper(placed, jitted)  # errors name the user's function
    return lower_function(placed, jax.tree.unflatten(tree, types), platform)


def _dumped(compile_: Callable[[dict[str, Setting]], _T]) -> tuple[_T, tuple[bytes, str]]:
    """Compiles a program with dumps of its HLO after partitioning.

    If nothing is dumped, the program may have come from JAX's compilation cache, so it is compiled
    a second time with options that miss the cache.

    Args:
      compile_: compiles the program with the compiler options that it is given.

    Returns:
      What `compile_` returns, and the HLO as a proto and as text.

    Raises:
      NotPartitioned: the program runs on one device.
    """
    for options in (_dump_options, _new_dump_options):
        with tempfile.TemporaryDirectory(prefix="shmap_") as folder:
            compiled = compile_(options(folder))
            if made := _read(folder):
                return compiled, made
    raise NotPartitioned


def _dump_options(folder: str) -> dict[str, Setting]:
    """Compiler options; their values have to be booleans for libtpu."""
    return {
        "xla_dump_to": folder,
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_as_text": True,
        "xla_dump_hlo_pass_re": "spmd-partitioning",
    }


def _new_dump_options(folder: str) -> dict[str, Setting]:
    """The same, with one option that is part of the keys of JAX's compilation cache.

    The keys leave out the other options for dumps. The folder is new, so no entry has this key.
    """
    return {**_dump_options(folder), "xla_dump_emitter_re": folder}


def _read(folder: str) -> tuple[bytes, str] | None:
    files = [path for path in Path(folder).iterdir() if _AFTER.search(path.name)]
    protos = sorted(path for path in files if path.name.endswith(".hlo.pb"))
    texts = sorted(path for path in files if path.name.endswith(".txt"))
    if not protos or not texts:
        return None
    return _module_of(protos[-1].read_bytes()), texts[-1].read_text()


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
