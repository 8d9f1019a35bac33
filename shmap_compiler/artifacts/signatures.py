"""Signatures as JSON and bytes, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from shmap_compiler.artifacts import checks
from shmap_compiler.artifacts.structures import (
    read_structure,
    structure_problems,
    write_structure,
)
from shmap_compiler.base.descriptions import show_type_of
from shmap_compiler.base.errors import ArtifactError, Problem
from shmap_compiler.base.jax_compat import (
    Reductions,
    abstract_mesh,
    reduction_kind,
    reductions,
    with_reductions,
)
from shmap_compiler.base.random_keys import is_key
from shmap_compiler.base.untyped import AnyValue, Aval, Json, PyTree, Unchecked
from shmap_compiler.records.signature import Signature

_CONSTANT = "constants/{}"
_WEAK = "weak_results"
_STATIC = (str, int, float, bool, type(None))


def write_signature(signature: Signature) -> tuple[dict[str, Json], dict[str, bytes]]:
    """(its description in JSON, the values of its constants as parts of a file).

    Raises:
      ArtifactError: it holds a structure or a value that a file cannot hold.
    """
    problems = [
        *structure_problems(signature.in_tree, "args"),
        *result_problems(signature),
        *_static_problems(signature),
    ]
    if problems:
        raise ArtifactError(signature.who, problems)
    mesh = abstract_mesh(signature.mesh)
    header = {
        "who": signature.who,
        "name": signature.name,
        "mesh": dict(mesh.shape),
        "axis_types": [kind.name for kind in mesh.axis_types],
        "in_tree": write_structure(signature.in_tree),
        "in_paths": list(signature.in_paths),
        "static": [list(entry) for entry in signature.static],
        "in_types": [_encode_type(t) for t in signature.in_types],
        "in_specs": [_encode_spec(s) for s in signature.in_specs],
        "out_tree": write_structure(signature.out_tree),
        "out_types": [_encode_type(t) for t in signature.out_types],
        "out_specs": [_encode_spec(s) for s in signature.out_specs],
        "constants": len(signature.constants),
        "in_memory_kinds": list(signature.in_memory_kinds),
        "out_memory_kinds": list(signature.out_memory_kinds),
        **_encode_weak(signature.out_types),
    }
    parts = {_CONSTANT.format(i): _bytes_of(x) for i, x in enumerate(signature.constants)}
    return header, parts


def argument_problems(signature: Signature) -> list[Problem]:
    """What a file cannot hold of the structure of the arguments and of the static ones."""
    return [*structure_problems(signature.in_tree, "args"), *_static_problems(signature)]


def result_problems(signature: Signature) -> list[Problem]:
    """What a file cannot hold of the structure of the results."""
    return structure_problems(signature.out_tree, "result")


def constant_sizes(header: Mapping[str, Json]) -> dict[str, int]:
    """The parts that hold the constants of a signature, and their sizes in bytes."""
    count, types = checks.field(header, "constants", int), checks.entries(header, "in_types", list)
    if not 0 <= count <= len(types):
        raise checks.Malformed(f"{count} constants of {len(types)} inputs", "at most as many")
    return {_CONSTANT.format(i): _size(_decode_type(types[i])) for i in range(count)}


def read_signature(header: Mapping[str, Json], parts: Mapping[str, bytes]) -> Signature:
    """The signature that `write_signature` described, on a mesh without devices.

    Raises:
      Malformed: the description is inconsistent.
    """
    names, sizes, types = checks.mesh_sizes(header)
    in_types = tuple(_decode_type(t) for t in checks.entries(header, "in_types", list))
    constants = [
        _array_of(parts[name], in_types[i]) for i, name in enumerate(constant_sizes(header))
    ]
    signature = Signature(
        who=checks.field(header, "who", str),
        name=checks.field(header, "name", str),
        mesh=AbstractMesh(sizes, names, axis_types=types),
        in_tree=_read_tree(header, "in_tree"),
        in_paths=tuple(checks.entries(header, "in_paths", str)),
        static=tuple(map(_read_static, checks.entries(header, "static", list))),
        constants=tuple(constants),
        in_types=in_types,
        in_specs=tuple(_decode_spec(s) for s in checks.entries(header, "in_specs", list)),
        out_tree=_read_tree(header, "out_tree"),
        out_types=_decode_weak(
            header, [_decode_type(t) for t in checks.entries(header, "out_types", list)]
        ),
        out_specs=tuple(_decode_spec(s) for s in checks.entries(header, "out_specs", list)),
        in_memory_kinds=checks.memory_kinds(header, "in_memory_kinds"),
        out_memory_kinds=checks.memory_kinds(header, "out_memory_kinds"),
        is_from_file=True,
    )
    checks.signature(signature)
    return signature


def _read_tree(header: Mapping[str, Json], name: str) -> PyTree:
    text = checks.field(header, name, list, bool)
    checks.tree_depth(text)
    return read_structure(text)


def _read_static(entry: list[Unchecked]) -> tuple[int, str, AnyValue]:
    if len(entry) != 3 or type(entry[0]) is not int or type(entry[1]) is not str:
        raise checks.Malformed(f"{entry!r:.60} as 'static'", "[position, path, value]")
    checks.choice("static", type(entry[2]), _STATIC)
    return entry[0], entry[1], entry[2]


def _static_problems(signature: Signature) -> list[Problem]:
    return [
        Problem(
            path,
            f"{show_type_of(value)}, an argument without spec",
            "a string, a number, a bool or None: a file cannot hold other values",
            "close over it instead of passing it",
        )
        for _, path, value in signature.static
        if type(value) not in _STATIC
    ]


# ------------------------------------------------------------------------------ types and specs

_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def _encode_type(type_: Aval) -> list[Aval]:
    return [str(type_.dtype), *type_.shape]


def _decode_type(text: list[Json]) -> jax.ShapeDtypeStruct:
    name, shape = checks.type_text(text)
    dtype = next((d for d in map(_key_dtype, _KEYS) if str(d) == name), None)
    return jax.ShapeDtypeStruct(shape, checks.element_type(name) if dtype is None else dtype)


def _encode_weak(types: Sequence[jax.ShapeDtypeStruct]) -> dict[str, Json]:
    """A field with the positions of the weakly typed results; none if there are none."""
    weak = [i for i, type_ in enumerate(types) if type_.weak_type]
    return {_WEAK: weak} if weak else {}


def _decode_weak(
    header: Mapping[str, Json], types: Sequence[jax.ShapeDtypeStruct]
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The types of results, those weak that are named by a field which older files lack."""
    found = checks.entries(header, _WEAK, int) if _WEAK in header else []
    weak = checks.numbers(_WEAK, found, len(found), len(types))
    return tuple(t.update(weak_type=True) if i in weak else t for i, t in enumerate(types))


@cache
def _key_dtype(implementation: str) -> Aval:
    """The element type of random keys."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


def _size(type_: jax.ShapeDtypeStruct) -> int:
    """The bytes of a constant."""
    if not is_key(type_):
        return math.prod(type_.shape) * type_.dtype.itemsize
    implementation = next(each for each in _KEYS if _key_dtype(each) == type_.dtype)
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=implementation)))
    return math.prod(type_.shape) * math.prod(words.shape) * 4


def _encode_spec(spec: PartitionSpec) -> list[Json]:
    """One entry for each dimension; after them, if there are any, the axes yet to be reduced."""
    entries = [list(e) if isinstance(e, tuple) else e for e in spec.partitions]
    found = reductions(spec)
    if not found:
        return entries
    kind = None if found.kind is None else found.kind.name
    summed = {"unreduced": sorted(found.unreduced), "reduced": sorted(found.reduced), "kind": kind}
    return [*entries, summed]


def _decode_spec(text: list[Json]) -> PartitionSpec:
    summed = text[-1] if text and isinstance(text[-1], dict) else None
    entries = text if summed is None else text[:-1]
    for entry in entries:
        names = entry if isinstance(entry, list) else [] if entry is None else [entry]
        _check_names(names, text)
    spec = PartitionSpec(*[tuple(e) if isinstance(e, list) else e for e in entries])
    if summed is None:
        return spec
    if set(summed) != {"unreduced", "reduced", "kind"} or not (
        isinstance(summed["unreduced"], list) and isinstance(summed["reduced"], list)
    ):
        raise checks.Malformed(f"{summed!r:.60} in a spec", "unreduced and reduced axes")
    _check_names([*summed["unreduced"], *summed["reduced"]], text)
    unreduced, reduced = frozenset(summed["unreduced"]), frozenset(summed["reduced"])
    try:
        return with_reductions(spec, Reductions(unreduced, reduced, reduction_kind(summed["kind"])))
    except (KeyError, TypeError, ValueError) as error:
        raise checks.Malformed(f"{summed!r:.60} in a spec", "a spec of this JAX") from error


def _check_names(names: list[Unchecked], text: list[Json]) -> None:
    if not all(type(name) is str for name in names):
        raise checks.Malformed(f"{text!r:.60} as a spec", "names of axes, or null")


# ----------------------------------------------------------------------------------- constants


def _bytes_of(value: Unchecked) -> bytes:
    if is_key(value):
        value = jax.random.key_data(value)
    return np.ascontiguousarray(np.asarray(value)).tobytes()


def _array_of(data: bytes, type_: jax.ShapeDtypeStruct) -> AnyValue:
    for implementation in _KEYS:
        if type_.dtype == _key_dtype(implementation):
            words = jnp.asarray(np.frombuffer(data, np.uint32).reshape(*type_.shape, -1))
            return jax.random.wrap_key_data(words, impl=implementation)
    return np.frombuffer(data, type_.dtype).reshape(type_.shape)
