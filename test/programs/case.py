"""A program under a chain of transformations: what the property tests run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from programs.exact import Inexact, is_float
from programs.jax_limits import rules_run
from programs.program import Program
from programs.transformation import BATCH, Function, Transformation

DERIVATIVES = ("grad", "jvp")


@dataclass(frozen=True)
class Case:
    """The chain is applied from left to right: `(grad, jit)` is `jit(grad(f))`.

    The repr can be pasted into a test, like that of the program.
    """

    program: Program
    chain: tuple[Transformation, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(t.name for t in self.chain)

    @property
    def derivatives(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name in DERIVATIVES)

    def fits(self) -> bool:
        """Whether there is something to derive; if not asked for that, whether all is exact."""
        if not rules_run(self.program, self.names):
            return False
        if self.derivatives:
            return any(is_float(x.dtype) for x in self.program.expected())
        try:
            return bool(self.expected)
        except Inexact:
            return False

    def transformed(self, function: Function) -> Function:
        """Of the shard-mapped program."""
        for transformation in self.chain:
            function = transformation.jax(function)
        return function

    def arrays(self) -> list[np.ndarray]:
        return batches(self.program, self.chain, seed=0)

    @cached_property
    def expected(self) -> list[Any]:
        """The items of the result according to the oracle; in float64 if there are derivatives."""
        function: Callable[..., Any] = self.program.oracle
        for transformation in self.chain:
            function = transformation.oracle(function)
        arrays = self.arrays()
        if self.derivatives:
            arrays = [x.astype(np.float64) if is_float(x.dtype) else x for x in arrays]
        return list(function(*arrays))

    def __str__(self) -> str:
        chain = [t.name + (f" with in_axes={t.in_axes}" if t.in_axes else "") for t in self.chain]
        return "\n".join([str(self.program), *chain])


def batches(program: Program, chain: Sequence[Transformation], seed: int) -> list[np.ndarray]:
    """Arguments for the program under the chain."""
    if not chain:
        return program.arrays(seed)
    *inner, outermost = chain
    if outermost.name != "vmap":
        return batches(program, inner, seed)
    rows = [batches(program, inner, BATCH * seed + row) for row in range(BATCH)]
    return [
        xs[0] if axis is None else np.stack(xs, axis)
        for xs, axis in zip(zip(*rows, strict=True), outermost.in_axes, strict=True)
    ]
