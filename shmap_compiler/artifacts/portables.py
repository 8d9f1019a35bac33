"""Files with portable programs: the StableHLO artifact and the signature."""

from __future__ import annotations

from shmap_compiler.artifacts.container import Container, pack
from shmap_compiler.artifacts.signatures import read_signature, write_signature
from shmap_compiler.portable import Portable

KIND = "portable"
_MODULE = "module.stablehlo"


def write_portable(program: Portable) -> bytes:
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


def read_portable(container: Container) -> Portable:
    header = container.header
    return Portable(
        signature=read_signature(header["signature"], container.parts),
        module=container.parts[_MODULE],
        kept=tuple(header["kept"]),
        partitioner=header["partitioner"],
        platform=header["platform"],
    )
