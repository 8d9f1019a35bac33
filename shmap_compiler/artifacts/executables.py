"""Files with compiled programs: what the backend serialized, the signature, and the analyses.

The compiled program is written by JAX (`jax.experimental.serialize_executable`) as a pickle: load
files only from those you trust.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import asdict

import jax
import numpy as np
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from shmap_compiler.artifacts.checks import entries, field, numbers
from shmap_compiler.artifacts.container import Container, pack, versions
from shmap_compiler.artifacts.signatures import constant_sizes, read_signature, write_signature
from shmap_compiler.base.errors import ArtifactError, Problem
from shmap_compiler.base.meshes import attached_devices, request_cpu_devices
from shmap_compiler.base.untyped import Device, Json
from shmap_compiler.records.compiled_program import MemoryAnalysis
from shmap_compiler.records.loaded_program import LoadedProgram
from shmap_compiler.records.signature import Signature
from shmap_compiler.targets import Target
from shmap_compiler.targets.compiler_build import compiler_build

KIND = "executable"
PROGRAM, HLO = "program.pickle", "hlo.txt"

_MACHINE_CODE = {"linux": b"\x7fELF", "darwin": b"\xcf\xfa\xed\xfe"}
"""The first bytes of an object file, by operating system; not known for others."""
_NEEDS_CODE = re.compile(r", kind=kLoop,")
"""A fusion that XLA compiles to machine code for CPUs; others call libraries."""


def write_executable(executable: LoadedProgram) -> bytes:
    """The bytes of a file.

    Raises:
      ArtifactError: the backend cannot serialize it, it calls back into Python, or its signature
        cannot be saved.
    """
    signature = executable.signature
    if signature.callbacks:
        raise ArtifactError(signature.who, [_calls_back(line) for line in signature.callbacks])
    described, parts = write_signature(signature)
    assert isinstance(signature.mesh, Mesh), "an executable has devices"
    devices = list(signature.mesh.devices.flat)
    machine = executable.machine
    header = {
        "target": None if executable.target is None else executable.target.text,
        "device_kind": devices[0].device_kind,
        "device_ids": [device.id for device in devices],
        "places": None if machine is None else machine.places,
        "backend": compiler_build(devices[0]),
        "costs": executable.cost_analysis() or {},
        "memory": asdict(MemoryAnalysis.of(executable.memory_analysis())),
        "signature": described,
    }
    program, hlo = _serialized(executable), executable.as_text()
    if devices[0].platform == "cpu" and _lacks_code(program, hlo):
        raise ArtifactError(signature.who, [_READ_BEFORE])
    return pack(Container(KIND, header, {PROGRAM: program, HLO: hlo.encode(), **parts}))


def write_compiled(signature: Signature, contents: Container) -> bytes:
    """The bytes of a file.

    Args:
      contents: what the process that compiled the program wrote.

    Raises:
      ArtifactError: its signature cannot be saved.
    """
    described, constants = write_signature(signature)
    header = {**contents.header, "signature": described}
    return pack(Container(KIND, header, {**contents.parts, **constants}))


def parts_of_executable(header: Json) -> dict[str, int | None]:
    """The parts of such a file, with the sizes that are known."""
    return {PROGRAM: None, HLO: None, **constant_sizes(field(header, "signature", dict))}


def read_executable(container: Container) -> LoadedProgram:
    """The compiled program of a file whose parts are those of `parts_of_executable`.

    Raises:
      ArtifactError: other versions compiled it, or its devices are not attached.
      Malformed: the contents of the file are inconsistent.
    """
    header = container.header
    signature = read_signature(header["signature"], container.parts)
    text = field(header, "target", str, type(None))
    target = None if text is None else Target.parse(text)
    devices = _devices(container, signature)
    shape = tuple(signature.mesh.shape.values())
    mesh = Mesh(
        np.array(devices, dtype=object).reshape(shape),
        signature.mesh.axis_names,
        axis_types=signature.axis_types,
    )
    structures = [
        jax.tree.structure(((0,) * len(signature.in_types), {})),
        jax.tree.structure([0] * len(signature.out_types)),
    ]
    compiled = serialize_executable.deserialize_and_load(
        container.parts[PROGRAM],
        *structures,
        backend=devices[0].client,
        execution_devices=devices,
    )
    return LoadedProgram(signature.on(mesh), compiled, target)


def _serialized(executable: LoadedProgram) -> bytes:
    try:
        return serialize_executable.serialize(executable.jax_compiled)[0]
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as error:
        problem = Problem(
            "the compiled program",
            f"its backend cannot save it: {error}",
            "a backend that does",
            "save the lowered program instead: lower(...).save(path)",
        )
        raise ArtifactError(executable.signature.who, [problem]) from error


def _lacks_code(program: bytes, hlo: str) -> bool:
    """Whether a serialized program for CPUs has lost its machine code.

    XLA discards the code when it deserializes a program, so a second copy cannot run.
    """
    begin = _MACHINE_CODE.get(sys.platform)
    return begin is not None and begin not in program and bool(_NEEDS_CODE.search(hlo))


def _devices(container: Container, signature: Signature) -> list[Device]:
    header, who = container.header, signature.who
    kind = field(header, "device_kind", str)
    attached = attached_devices()
    here = {d.id: d for d in attached if d.device_kind == kind}
    count = math.prod(signature.mesh.shape.values())
    ids = numbers("device_ids", entries(header, "device_ids", int), count, 2**31)
    there = [here.get(i) for i in ids]
    problems = []
    if None in there:
        kinds = sorted({d.device_kind for d in attached})
        problems.append(
            Problem(
                container.where,
                f"{len(attached)} devices here, of kind {', '.join(kinds)}",
                f"the {len(there)} devices of kind {header['device_kind']} it was compiled for"
                + (f", {header['target']}" if header["target"] else ""),
                "load it on a machine that has them, or save the lowered program instead, which "
                "compiles for any devices: lower(...).save(path)"
                + (f"; or {request_cpu_devices(max(ids) + 1)}" if kind == "cpu" else ""),
            )
        )
    found = dict(field(header, "versions", dict), backend=field(header, "backend", str))
    wanted = versions() if problems else dict(versions(), backend=compiler_build(here[ids[0]]))
    problems += [
        Problem(
            container.where,
            f"compiled by {package} {found.get(package)}",
            f"{package} {wanted[package]}, as here: a compiled program runs on one version only",
            "compile it again here; the lowered program may be saved for all versions: "
            "lower(...).save(path)",
        )
        for package in wanted
        if found.get(package) != wanted[package]
    ]
    if problems:
        raise ArtifactError(who, problems)
    return there


_READ_BEFORE = Problem(
    "the compiled program",
    "a program for CPUs that was read from a file or from JAX's compilation cache: XLA cannot "
    "serialize it again",
    "a program that was compiled in this process",
    "copy the file it was loaded from, or compile it with JAX_ENABLE_COMPILATION_CACHE=0, or "
    "save the lowered program instead: lower(...).save(path)",
)


def _calls_back(line: str) -> Problem:
    return Problem(
        line,
        "a call back into Python",
        "a program that does not call back into this process",
        "remove the callback or print",
    )
