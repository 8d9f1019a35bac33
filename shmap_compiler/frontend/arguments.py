"""The arguments of a call: matched with in_specs, typed, and checked."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Number
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shmap_compiler.base import spec_errors, specs
from shmap_compiler.base.descriptions import describe, show_value
from shmap_compiler.base.errors import Problem, SpecError, TypeProblem, spec_error
from shmap_compiler.base.jax_compat import (
    PARTLY_MANUAL_REDUCTIONS,
    explicit_axes,
    is_ref,
    reductions,
    setting,
    type_reductions,
    type_split,
    value_type,
    with_reductions,
)
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue, Aval, Function, PyTree
from shmap_compiler.base.values import is_hashable, type_of

_LARGEST_ARRAY = 2**63 - 1


class Infer:
    """Stands for in_specs that are not given: the types of the arguments say how they are split."""

    def __repr__(self) -> str:
        return "Infer"


INFER = Infer()


class Input(NamedTuple):
    """An argument that is an array.

    Attributes:
      position: in the flat arguments.
      path: as the user names it: `args[0]['w']`.
      type: of the full array.
      is_ref: whether it is a mutable reference to an array of this type.
    """

    position: int
    path: str
    spec: PartitionSpec
    type: Aval
    is_ref: bool = False


@dataclass(frozen=True)
class Inputs:
    """
    Attributes:
      dynamic: the arguments that are split into blocks.
      static: position, path and value of each argument that `f` receives as it is.
    """

    dynamic: tuple[Input, ...]
    static: tuple[tuple[int, str, AnyValue], ...]

    def scanned(self, fun: Function) -> Function:
        """What to scan for the code that a call of `fun` may reach: static arguments, too."""
        if not self.static:
            return fun
        return functools.partial(fun, *[value for _, _, value in self.static])

    def rebuild(self, args: tuple[PyTree, ...], blocks: Sequence[AnyValue]) -> tuple[PyTree, ...]:
        """The user's arguments with each array replaced by its block."""
        leaves, tree = jax.tree.flatten(args)
        for i, block in zip(self.dynamic, blocks, strict=True):
            leaves[i.position] = block
        return jax.tree.unflatten(tree, leaves)


def read_inputs(
    who: str, region: ManualRegion, in_specs: PyTree, out_specs: PyTree, args: tuple[PyTree, ...]
) -> Inputs:
    """Raises SpecError for all that is wrong with the specs, and with the arguments for them."""
    on_mesh = region.mesh, region.manual_axes
    infers = in_specs is INFER
    problems = list(
        _cannot_infer(region)
        if infers
        else spec_errors.tree_problems(in_specs, "in_specs", *on_mesh)
    )
    specs_are_good = not infers and not problems
    problems += spec_errors.tree_problems(out_specs, "out_specs", *on_mesh)
    matched, mismatches = _matched(in_specs, args)
    problems += mismatches
    dynamic, static = [], []
    good: dict[Any, Aval] = {}  # of hundreds few differ
    for position, (path, leaf, spec_path, spec) in enumerate(matched):
        if spec is None:
            static.append((position, path, leaf))
            continue
        aval = type_of(leaf)
        kind = type(leaf), aval, spec
        if good and is_hashable(kind) and kind in good:
            dynamic.append(Input(position, path, spec, good[kind]))
            continue
        ref, aval = (True, value_type(aval)) if is_ref(aval) else (False, aval)
        impossible = list(_impossible_type(path, leaf))
        if impossible:
            problems += impossible
        elif aval is None:
            problems.append(_not_an_array(path, leaf, spec_path))
        elif _reduces_elsewhere(aval, region):
            problems.append(spec_errors.only_fully_manual(path, specs.show_split(aval)))
        elif spec is INFER:
            split = _inferred(aval, region.manual_axes)
            if split is None:
                problems.append(_not_inferable(path, aval, region))
            else:
                dynamic.append(Input(position, path, split, aval, ref))
        elif specs_are_good or not any(spec_errors.spec_problems(spec, spec_path, *on_mesh)):
            wrong = list(spec_errors.input_problems(aval.shape, path, spec, spec_path, region.mesh))
            wrong = wrong or list(_not_as_typed(aval, path, spec, spec_path, region))
            problems += wrong
            dynamic.append(Input(position, path, spec, aval, ref))
            if specs_are_good and not ref and not wrong and is_hashable(kind):
                good[kind] = aval
    if problems:
        raise spec_error(who, problems)
    return Inputs(tuple(dynamic), tuple(static))


def refuse_types(fun: Function, paths: Sequence[str], values: Sequence[AnyValue]) -> None:
    """Raises SpecError for each input of a call of `fun` that is only a type, without a value."""
    problems = [
        _only_a_type(path, x)
        for path, x in zip(paths, values, strict=True)
        if isinstance(x, jax.ShapeDtypeStruct)
    ]
    if problems:
        raise SpecError(describe(fun), problems)


def _matched(in_specs: PyTree, args: tuple[PyTree, ...]):
    in_specs = tuple(in_specs) if isinstance(in_specs, list) else in_specs
    return specs.broadcast_specs(in_specs, args, "in_specs", "args")


def _only_a_type(path: str, x: object) -> Problem:
    return Problem(
        path,
        f"a ShapeDtypeStruct, {specs.show_type(x)}",
        "an array: a call computes with its values",
        "pass an array; types alone are enough for trace() and lower()",
    )


def _impossible_type(path: str, leaf: object) -> Iterator[Problem]:
    """What is wrong with a type that no array has. Sizes may be symbols, which are not checked."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return
    numbers = [size for size in leaf.shape if isinstance(size, Number)]
    whole = [size for size in numbers if isinstance(size, Integral)]
    if len(whole) < len(numbers) or any(size < 0 for size in whole):
        yield Problem(
            path,
            f"a ShapeDtypeStruct of shape {leaf.shape}",
            "whole numbers from 0 as sizes",
            "write the shape of an array, as in jax.ShapeDtypeStruct((8, 16), 'float32')",
        )
        return
    bytes_ = math.prod(whole) * leaf.dtype.itemsize
    if max(bytes_, *whole, 0) > _LARGEST_ARRAY:
        yield Problem(
            path,
            f"a ShapeDtypeStruct of {_digits(bytes_)} bytes",
            f"at most {_LARGEST_ARRAY} bytes, which 64 bits count",
            "make a dimension smaller",
        )


def _digits(number: int) -> str:
    """A number, as a power of two if it is long."""
    return str(number) if number < 10**30 else f"more than 2^{number.bit_length() - 1}"


def _not_an_array(path: str, leaf: object, spec_path: str) -> Problem:
    if isinstance(leaf, int):
        bits = 64 if setting("jax_enable_x64") else 32
        fix = "pass a smaller number" if bits == 64 else "set jax_enable_x64, or pass a float"
        return Problem(path, show_value(leaf), f"an integer of at most {bits} bits", fix)
    if isinstance(leaf, (np.ndarray, np.generic)):
        found = f"an array of NumPy of type {leaf.dtype.str}"
        return Problem(path, found, "an element type that JAX has", "convert it: x.astype(...)")
    return Problem(
        path,
        show_value(leaf),
        "an array, a NumPy array or a number",
        f"pass an array, or give {spec_path} the value None to pass it to the function unchanged",
    )


# ------------------------------------------------------------- arguments whose types are split


def _inferred(aval: Aval, manual: Sequence[str]) -> PartitionSpec | None:
    """The spec that a type implies; None if no spec can say it.

    Of the axes that split a dimension, those that the body takes must come first: its block is a
    contiguous part of the array.
    """
    entries = []
    for axes in type_split(aval):
        mine = tuple(a for a in axes if a in manual)
        if axes[: len(mine)] != mine:
            return None
        entries.append(mine[0] if len(mine) == 1 else mine or None)
    return with_reductions(PartitionSpec(*entries), type_reductions(aval).over(manual))


def _cannot_infer(region: ManualRegion) -> Iterator[Problem]:
    typed = explicit_axes(region.mesh)
    others = [a for a in region.manual_axes if a not in typed]
    if others:
        names = ", ".join(map(repr, others))
        yield TypeProblem(
            "in_specs",
            f"none, over axis {names} of type Auto",
            "in_specs, or axes of type Explicit only, which are part of the arguments' types",
            "pass in_specs, a PartitionSpec for each argument",
        )


def _not_inferable(path: str, aval: object, region: ManualRegion) -> Problem:
    return Problem(
        path,
        specs.show_split(aval),
        f"axes {', '.join(map(repr, region.manual_axes))} before others at each dimension",
        "change the split with jax.sharding.reshard, or pass in_specs",
    )


def _not_as_typed(
    aval: Aval, path: str, spec: PartitionSpec, spec_path: str, region: ManualRegion
) -> Iterator[Problem]:
    """Over Explicit axes nothing moves, and nothing is summed, unless the program says so."""
    if _reduces_otherwise(aval, spec, region):
        yield Problem(
            f"{path} with {spec_path}={specs.show(spec)}",
            specs.show_split(aval),
            "the unreduced and reduced axes of the argument's type",
            "omit in_specs, write the axes of the type, or change them with "
            f"jax.sharding.reshard(x, {specs.show(spec)})",
        )
        return
    relevant = [a for a in explicit_axes(region.mesh) if a in region.manual_axes]
    sharding = getattr(aval, "sharding", None)
    if not relevant or not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return
    split = type_split(aval)
    if setting("jax_remove_size_one_mesh_axis_from_type"):  # types do not name such axes
        relevant = [a for a in relevant if region.mesh.shape[a] > 1]
    said = specs.dim_axes(spec, len(aval.shape))
    for typed, wanted in zip(split, said, strict=True):
        if [a for a in typed if a in relevant] != [a for a in wanted if a in relevant]:
            yield Problem(
                f"{path} with {spec_path}={specs.show(spec)}",
                specs.show_split(aval),
                "the split of the argument's type, over axes of type Explicit",
                "omit in_specs, write the split of the type, or change it with "
                f"jax.sharding.reshard(x, {specs.show(spec)})",
            )
            return


def _reduces_otherwise(aval: object, spec: PartitionSpec, region: ManualRegion) -> bool:
    """Whether a spec and a type differ in what is yet to be summed over axes that it makes manual.

    A `ShapeDtypeStruct` without sharding stands for an argument as the spec has it.
    """
    typed, said = type_reductions(aval), reductions(spec)
    if getattr(aval, "sharding", None) is None or not (typed or said):
        return False
    axes = [a for a in region.manual_axes if region.mesh.shape[a] > 1]
    return typed.over(axes) != said.over(axes)


def reduces(leaf: object) -> bool:
    """Whether an argument is an unreduced or reduced array."""
    return isinstance(leaf, jax.Array) and bool(type_reductions(leaf))


def _reduces_elsewhere(aval: object, region: ManualRegion) -> bool:
    """Whether an argument is yet to be summed over an axis that is not manual here, and cannot be.

    With JAX 0.12 it can, if no such axis splits it.
    """
    found = type_reductions(aval)
    if not found:
        return False
    elsewhere = {a for a in region.mesh.axis_names if a not in region.manual_axes}
    found = found.over(elsewhere)
    if PARTLY_MANUAL_REDUCTIONS:
        return bool(found.unreduced) and any(elsewhere.intersection(d) for d in type_split(aval))
    return bool(found)
