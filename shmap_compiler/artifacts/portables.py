"""Files with portable programs: the StableHLO artifact and the signature."""

from __future__ import annotations

from typing import get_args

from shmap_passes import Partitioner

from shmap_compiler.artifacts.checks import Malformed, choice, entries, field, numbers
from shmap_compiler.artifacts.container import Container, pack
from shmap_compiler.artifacts.signatures import (
    constant_sizes,
    read_signature,
    write_signature,
)
from shmap_compiler.base.random_keys import is_key
from shmap_compiler.base.untyped import Aval, Json
from shmap_compiler.lowering.portable_module import module_types
from shmap_compiler.records.portable_program import PortableProgram

KIND = "portable"
_MODULE = "module.stablehlo"


def write_portable(program: PortableProgram) -> bytes:
    """The bytes of a file.

    Raises:
      ArtifactError: its signature cannot be saved.
    """
    signature, parts = write_signature(program.signature)
    header = {
        "partitioner": program.partitioner,
        "platform": program.platform,
        "kept": list(program.kept),
        "signature": signature,
    }
    return pack(Container(KIND, header, {_MODULE: program.module, **parts}))


def parts_of_portable(header: Json) -> dict[str, int | None]:
    """The parts of such a file, with the sizes that are known."""
    return {_MODULE: None, **constant_sizes(field(header, "signature", dict))}


def read_portable(container: Container) -> PortableProgram:
    """The program of a file whose parts are those of `parts_of_portable`.

    Raises:
      Malformed: the contents of the file are inconsistent.
    """
    header = container.header
    signature = read_signature(header["signature"], container.parts)
    inputs = len(signature.in_types)
    kept = entries(header, "kept", int)
    program = PortableProgram(
        signature=signature,
        module=container.parts[_MODULE],
        kept=numbers("kept", kept, len(kept), inputs),
        partitioner=choice("partitioner", header.get("partitioner"), get_args(Partitioner)),
        platform=field(header, "platform", str),
    )
    _check_module(program)
    return program


def _check_module(program: PortableProgram) -> None:
    """Raises Malformed if the module does not have the types of the signature."""
    signature = program.signature
    inputs, outputs = module_types(program.module)
    for what, found, types in (
        ("arguments", inputs, [signature.in_types[i] for i in program.kept]),
        ("results", outputs, signature.out_types),
    ):
        if len(found) != len(types) or not all(map(_fits, found, types)):
            raise Malformed(f"a module with {what} of shapes {found}", "those in its header")


def _fits(found: tuple[int, ...], type_: Aval) -> bool:
    """Whether types match; in a module, a random key is an array of integers."""
    words = len(found) - len(type_.shape) if is_key(type_) else 0
    return found[: len(found) - words] == type_.shape
