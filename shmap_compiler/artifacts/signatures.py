"""Signatures as JSON and bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from shmap_compiler._compat import abstract_mesh
from shmap_compiler.artifacts.structures import (
    read_structure,
    structure_problems,
    write_structure,
)
from shmap_compiler.errors import ArtifactError, Problem
from shmap_compiler.signature import Signature

_CONSTANT = "constants/{}"


def write_signature(signature: Signature) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(its description in JSON, the values of its constants as parts of a file).

    Raises:
      ArtifactError: it holds a structure or a value that a file cannot hold.
    """
    problems = [
        *structure_problems(signature.in_tree, "args"),
        *structure_problems(signature.out_tree, "result"),
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
    }
    parts = {_CONSTANT.format(i): _bytes_of(x) for i, x in enumerate(signature.constants)}
    return header, parts


def read_signature(header: Mapping[str, Any], parts: Mapping[str, bytes]) -> Signature:
    """The signature that `write_signature` described, on a mesh without devices."""
    types = tuple(AxisType[name] for name in header["axis_types"])
    names, sizes = tuple(header["mesh"]), tuple(header["mesh"].values())
    in_types = tuple(_decode_type(t) for t in header["in_types"])
    constants = [
        _array_of(parts[_CONSTANT.format(i)], in_types[i]) for i in range(header["constants"])
    ]
    return Signature(
        who=header["who"],
        name=header["name"],
        mesh=AbstractMesh(sizes, names, axis_types=types),
        in_tree=read_structure(header["in_tree"]),
        in_paths=tuple(header["in_paths"]),
        static=tuple((position, path, value) for position, path, value in header["static"]),
        constants=tuple(constants),
        in_types=in_types,
        in_specs=tuple(_decode_spec(s) for s in header["in_specs"]),
        out_tree=read_structure(header["out_tree"]),
        out_types=tuple(_decode_type(t) for t in header["out_types"]),
        out_specs=tuple(_decode_spec(s) for s in header["out_specs"]),
    )


def _static_problems(signature: Signature) -> list[Problem]:
    return [
        Problem(
            path,
            f"a {type(value).__name__}, an argument without spec",
            "a string, a number, a bool or None: a file does not hold other values",
            "close over it instead of passing it",
        )
        for _, path, value in signature.static
        if type(value) not in (str, int, float, bool, type(None))
    ]


# ------------------------------------------------------------------------------ types and specs

_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def _encode_type(type_: Any) -> list[Any]:
    return [str(type_.dtype), *type_.shape]


def _decode_type(text: list[Any]) -> jax.ShapeDtypeStruct:
    name, *shape = text
    dtype = next((d for d in map(_key_dtype, _KEYS) if str(d) == name), None)
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(name) if dtype is None else dtype)


def _key_dtype(implementation: str) -> Any:
    """The element type of random keys."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype


def _encode_spec(spec: PartitionSpec) -> list[Any]:
    return [list(entry) if isinstance(entry, tuple) else entry for entry in spec]


def _decode_spec(text: list[Any]) -> PartitionSpec:
    return PartitionSpec(*[tuple(e) if isinstance(e, list) else e for e in text])


# ----------------------------------------------------------------------------------- constants


def _bytes_of(value: Any) -> bytes:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.ascontiguousarray(np.asarray(value)).tobytes()


def _array_of(data: bytes, type_: jax.ShapeDtypeStruct) -> Any:
    for implementation in _KEYS:
        if type_.dtype == _key_dtype(implementation):
            words = jnp.asarray(np.frombuffer(data, np.uint32).reshape(*type_.shape, -1))
            return jax.random.wrap_key_data(words, impl=implementation)
    return np.frombuffer(data, type_.dtype).reshape(type_.shape)
