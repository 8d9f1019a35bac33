"""Names for what JAX, its bindings and Python give no type.

Signatures of this package contain `Any` by one of these names only, which
`test/project/test_annotations.py` checks. A name here says what a value is, although a type checker
cannot tell. Where there is a type, such as `jax.Array` or `Primitive`, signatures have the type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

PyTree: TypeAlias = Any
"""A tree of the user's, in containers that JAX has registered: of arrays, types, specs or axes."""

Leaf: TypeAlias = Any
"""A leaf of such a tree, before or after it was checked."""

Function: TypeAlias = Callable[..., Any]
"""A function of any arguments: the user's, or a rule of a primitive."""

Wrapped: TypeAlias = Any
"""A function with attributes of its own: with the stages of a jitted one, or wrapped by JAX."""

TreeDef: TypeAlias = Any
"""The structure of a tree. `jax.tree_util.PyTreeDef` is a variable to type checkers."""

AnyValue: TypeAlias = Any
"""A value of a program while it is traced or evaluated.

An array of JAX's or NumPy's, a tracer, a number, a random key, a token, or a reference.
"""

Aval: TypeAlias = Any
"""The type of a value: an array's, a reference's or a token's.

JAX exports `ShapedArray`, but neither the others nor all attributes that it has on both lines.
"""

DType: TypeAlias = Any
"""An element type: a `numpy.dtype`, or an extended one, as random keys have."""

Jaxpr: TypeAlias = Any
"""A `Jaxpr` or, where JAX distinguishes them, a `ClosedJaxpr`. JAX exports no types for them."""

Eqn: TypeAlias = Any
"""An equation of a jaxpr."""

Atom: TypeAlias = Any
"""An operand of an equation: a variable or a literal."""

Parameter: TypeAlias = Any
"""A parameter of an equation; each primitive has its own."""

Effect: TypeAlias = Any
"""An effect of an equation or a jaxpr, or a set of them."""

CheckError: TypeAlias = Any
"""A `checkify.Error`, or the exception in it. What they contain has no public names."""

Trace: TypeAlias = Any
"""An interpreter of primitives, as a subclass of JAX's class of traces."""

LoweringContext: TypeAlias = Any
"""What a lowering rule is given: the types of operands and results, and the module."""

Kept: TypeAlias = Any
"""What is kept while a module is being lowered: whoever keeps it knows what it is."""

SourceInfo: TypeAlias = Any
"""Where an equation comes from: a traceback and the names of scopes."""

OpView: TypeAlias = Any
"""An operation of MLIR's, by the class of its dialect, or an attribute of one, without stubs."""

Analysis: TypeAlias = Any
"""What the compiler reports about a program: its costs or its memory."""

Setting: TypeAlias = Any
"""The value of an option of JAX's, of a compiler's, or of one of our own functions."""

Json: TypeAlias = Any
"""What JSON can hold."""

Unchecked: TypeAlias = Any
"""What the user or a file gave for something else, before it was checked."""

Device: TypeAlias = Any
"""A device, attached or only known to a compiler. `jax.Device` is a variable to type checkers."""

AxisName: TypeAlias = Any
"""The name of an axis in a collective: of a mesh axis, of `vmap`, or a dimension."""
