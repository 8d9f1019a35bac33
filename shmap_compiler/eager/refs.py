"""Mutable references in an eager call: each holds a value, which operations on it replace.

A primitive that takes references is applied to the values they hold, as one operation that makes
references of them, applies the primitive, and gives their last values too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.ref import Ref

from shmap_compiler.base.jax_compat import is_ref, value_type
from shmap_compiler.base.untyped import AnyValue, Aval, Parameter, Trace
from shmap_compiler.eager.value import EagerValue

MAKERS = {"new_ref", "empty_ref"}
_ENDS = {"freeze", "free_ref"}
_READS = {"get", "freeze"}


class Reference(EagerValue):
    """A mutable reference.

    Attributes:
      held: its value.
      written: whether it has been written to.
    """

    __slots__ = ("held", "written")

    def __init__(self, trace: Trace, aval: Aval, held: EagerValue):
        super().__init__(trace, aval)
        self.held = held
        self.written = False

    def __str__(self) -> str:
        return f"Ref({self.held})"


@dataclass(frozen=True)
class OnValues:
    """A primitive that takes references, as one that takes and gives the values they hold.

    Attributes:
      refs: for each reference, which operands it is: the condition and the body of a loop may
        both take it.
      types: their types.
    """

    primitive: Primitive
    refs: tuple[tuple[int, ...], ...]
    types: tuple[Aval, ...]

    multiple_results = True

    @property
    def name(self) -> str:
        return self.primitive.name

    def __str__(self) -> str:
        return str(self.primitive)

    def bind(self, *values: AnyValue, **params: Parameter) -> list[AnyValue]:
        operands = list(values)
        refs = [jax.new_ref(operands[positions[0]]) for positions in self.refs]
        for positions, ref in zip(self.refs, refs, strict=True):
            for k in positions:
                operands[k] = ref
        results = self._listed(self.primitive.bind(*operands, **params))
        return [*results, *map(jax.freeze, refs)]

    def abstract_eval(self, *types: Aval, **params: Parameter) -> tuple[list[AnyValue], AnyValue]:
        operands = list(types)
        for positions, ref in zip(self.refs, self.types, strict=True):
            for k in positions:
                operands[k] = ref
        results, effects = self.primitive.abstract_eval(*operands, **params)
        return [*self._listed(results), *map(value_type, self.types)], effects

    def _listed(self, results: AnyValue) -> list[AnyValue]:
        return list(results) if self.primitive.multiple_results else [results]


def concerns_references(primitive: Primitive, operands: Sequence[AnyValue]) -> bool:
    """Whether a primitive makes or takes references."""
    return primitive.name in MAKERS or any(type(x) is Reference or _is_of_jax(x) for x in operands)


def _is_of_jax(x: object) -> bool:
    """Whether it is a reference made outside of the function, which closes over it."""
    return not isinstance(x, EagerValue) and isinstance(x, Ref)


def process(
    trace: Trace, primitive: Primitive, operands: Sequence[AnyValue], params: dict[str, Parameter]
) -> AnyValue:
    """Applies a primitive that makes or takes references."""
    name = primitive.name
    if name in MAKERS:
        return _made(trace, primitive, operands, params)
    operands = [trace.reference(x) if _is_of_jax(x) else x for x in operands]
    if name in _ENDS:
        return operands[0].held if name == "freeze" else []
    refs = list({id(x): x for x in operands if type(x) is Reference}.values())
    places = tuple(tuple(k for k, x in enumerate(operands) if x is ref) for ref in refs)
    on_values = OnValues(primitive, places, tuple(ref.aval for ref in refs))
    # As blocks, so that it runs as a program of the layout.
    held = [trace.stage_value(x.held) if type(x) is Reference else x for x in operands]
    results = trace.process_primitive(on_values, held, params)
    count = len(results) - len(refs)
    if name not in _READS:
        for ref, value in zip(refs, results[count:], strict=True):
            ref.held, ref.written = value, True
    return results[:count] if primitive.multiple_results else results[0]


def _made(
    trace: Trace, primitive: Primitive, operands: Sequence[AnyValue], params: dict[str, Parameter]
) -> Reference:
    aval, _ = primitive.abstract_eval(*map(jax.typeof, operands), **params)
    assert is_ref(aval)
    inner = value_type(aval)
    value = operands[0] if operands else jnp.zeros(inner.shape, inner.dtype)
    # A reference holds no value of weak type.
    value = lax.convert_element_type(value, inner.dtype)
    held = value if isinstance(value, EagerValue) else trace.constant(value)
    return Reference(trace, aval, held)
