"""Puts callbacks around the collectives of a program, for the watchdog (`watchdog`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import mlir

from shmap_compiler.base.jax_compat import is_key_type
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AnyValue, Eqn, Jaxpr, Parameter
from shmap_compiler.collectives import RECORDS, Waits, axis_index
from shmap_compiler.jaxprs.rewriting import Names, Rewriter
from shmap_compiler.lowering.watchdog import Watched

watched_p = Primitive("watched")
"""A collective between callbacks. It exists in programs that are being lowered only."""


_WAITING = {r.primitive for r in RECORDS if r.waits is not Waits.NOBODY}


@dataclass(frozen=True, eq=False)
class _Collective:
    """A collective of a watched program, and its number in the order of the program."""

    program: Watched
    number: int
    primitive: Primitive
    params: dict[str, Parameter]


def watched(jaxpr: Jaxpr, program: Watched) -> Jaxpr:
    """The same program with callbacks around its collectives, which it adds to `program`."""
    return _Watching(program).jaxpr(jaxpr)


class _Watching(Rewriter):
    def __init__(self, program: Watched):
        super().__init__()
        self.program = program

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        """Unlike other rewrites: each call of a shared program has collectives of its own."""
        return self.rewrite(jaxpr)

    def concerned(self, eqns: Sequence[Eqn]) -> list[int]:
        return [position for position, eqn in enumerate(eqns) if eqn.primitive in _WAITING]

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if eqn.primitive not in _WAITING:
            return super().equation(eqn, names)
        if any(is_key_type(v.aval) for v in eqn.invars):
            return [eqn]
        axes = ", ".join(map(repr, eqn.params["axes"]))
        name = f"{eqn.primitive.name} over {axes} at {source_line(eqn)}"
        number = self.program.add(name)
        collective = _Collective(self.program, number, eqn.primitive, eqn.params)
        return [eqn.replace(primitive=watched_p, params={"collective": collective})]


_NUMBER = jax.ShapeDtypeStruct((), np.int32)


def _lowering(ctx, *args, collective):
    program, number = collective.program, collective.number

    def between_callbacks(x, *others):
        position = axis_index(axes=tuple(program.mesh.axis_names))
        enter = lambda p, *_: program.enter(number, p)  # noqa: E731
        leave = lambda p, *_: program.leave(number, p)  # noqa: E731
        entered = io_callback(enter, _NUMBER, position, *_some_element(x))
        result = collective.primitive.bind(_after(entered, x), *others, **collective.params)
        left = io_callback(leave, _NUMBER, position, *_some_element(result))
        return _after(left, result)

    return mlir.lower_fun(between_callbacks, multiple_results=False)(ctx, *args)


def _some_element(x: AnyValue) -> list[AnyValue]:
    """A value that depends on `x`."""
    return [(x.reshape(-1)[0] != 0).astype(np.int32)] if x.size else []


def _after(zero: AnyValue, x: AnyValue) -> AnyValue:
    """`x`, with a dependence on the callback that returns `zero`, which XLA cannot remove."""
    return jnp.where(zero == 0, x, jnp.zeros_like(x))


# JAX must not share the lowering of two collectives of equal types.
mlir.register_lowering(watched_p, _lowering, cacheable=False)
