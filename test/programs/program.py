"""A whole program: mesh, arguments with specs, body, result specs. Printable, and plain data."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax.sharding import Mesh, PartitionSpec

from programs.body import Body
from programs.derivative import run_dual
from programs.dual import each, order
from programs.interpret import RULES, run_jax, run_rounded


@dataclass(frozen=True)
class Argument:
    shape: tuple[int, ...]  # of the full array
    dtype: str
    spec: PartitionSpec

    def array(self, seed: int) -> np.ndarray:
        """Small numbers, which leave room for exact arithmetic (`programs.exact`)."""
        numbers = np.random.default_rng(seed).integers(-4, 5, self.shape)
        if self.dtype == "bool":
            return numbers > 0
        unit = 1 if self.dtype == "int32" else 2
        return np.asarray(numbers / unit).astype(jnp.dtype(self.dtype))


@dataclass(frozen=True)
class Program:
    """A function of per-device blocks and all that `shard_map` wants to know about it.

    The repr is the program: it can be pasted into a test. `str` is for reading.
    """

    mesh: oracle.Mesh
    devices: tuple[int, ...]  # numbers of the devices, row-major over the mesh
    arguments: tuple[Argument, ...]
    body: Body
    out_specs: tuple[PartitionSpec, ...]

    @property
    def in_specs(self) -> tuple[PartitionSpec, ...]:
        return tuple(argument.spec for argument in self.arguments)

    def jax_mesh(self) -> Mesh:
        devices = np.array(jax.devices())[list(self.devices)]
        return Mesh(devices.reshape(tuple(self.mesh.values())), tuple(self.mesh))

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        return [
            argument.array(seed * len(self.arguments) + number)
            for number, argument in enumerate(self.arguments)
        ]

    def __call__(self, *blocks: jax.Array) -> tuple[jax.Array, ...]:
        """The per-device function for `shard_map`."""
        return run_jax(self.body, *blocks)

    def expected(self) -> list[np.ndarray]:
        """The results on `arrays()` according to the oracle."""
        return self.oracle(*self.arrays())

    def oracle(self, *arrays: Any) -> list[Any]:
        """The results on any arrays, which may be dual, according to the oracle."""
        blocks = [
            each(partial(oracle.split, spec=spec, mesh=self.mesh), array)
            for array, spec in zip(arrays, self.in_specs, strict=True)
        ]
        results = run_dual(max(map(order, arrays)), self.mesh, self.body, *blocks)
        return [
            each(partial(oracle.join, spec=spec, mesh=self.mesh), result)
            for result, spec in zip(results, self.out_specs, strict=True)
        ]

    def rounded(self) -> tuple[bool, ...]:
        """Which results are exact up to the last operation, and then rounded."""
        return run_rounded(self.body, *(False for _ in self.arguments))

    def __str__(self) -> str:
        sizes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        lines = [f"mesh {sizes} on devices {' '.join(map(str, self.devices))}"]
        for number, argument in enumerate(self.arguments):
            shape = ",".join(map(str, argument.shape))
            lines.append(f"%{number}: {argument.dtype}[{shape}] {argument.spec}")
        lines += body_lines(self.body)
        for number, spec in zip(self.body.results, self.out_specs, strict=True):
            lines.append(f"result %{number}: {spec}")
        return "\n".join(lines)


def body_lines(body: Body) -> Iterator[str]:
    """One operation on a line, and inner bodies indented below it."""
    number = body.inputs
    for op in body.ops:
        results = [f"%{n}" for n in range(number, number + RULES[op.name].results)]
        number += len(results)
        words = [f"%{operand}" for operand in op.operands]
        words += [f"{k}={v!r}" for k, v in op.params.items() if k not in ("body", "branches")]
        yield f"{', '.join(results)} = {op.name}({', '.join(words)})"
        for inner in op.bodies:
            yield f"    inputs {', '.join(f'%{n}' for n in range(inner.inputs))}"
            yield from (f"    {line}" for line in body_lines(inner))
            yield f"    results {', '.join(f'%{n}' for n in inner.results)}"
