"""The collectives of the Graph: one small family, named by mesh axes.

Each file defines one primitive (or one kind), always in the same order: the function that binds it,
its type, its lowering to StableHLO, its derivative, its batching, the registration of these, how
JAX's primitives become it, and last its record, which is all that the other rooms know of it. All
are per-device operations: shapes are those of one device's block.

Common parameters: `axes`, the mesh axes over which devices communicate, major axis first; `groups`,
a partition of 0..n-1 (n the product of the axes' sizes) into subgroups, of equal size except for
psum, pmax and pmin, or None for one group of all; `size`, the number of devices in one group.
"""

from jax.extend.core import Primitive

from shmap_compiler.collectives.all_reduce import (
    PMAX,
    PMIN,
    PSUM,
    pmax,
    pmax_p,
    pmin,
    pmin_p,
    psum,
    psum_p,
)
from shmap_compiler.collectives.all_to_all import ALL_TO_ALL, all_to_all, all_to_all_p
from shmap_compiler.collectives.axis_index import AXIS_INDEX, axis_index, axis_index_p
from shmap_compiler.collectives.gather_scatter import (
    ALL_GATHER,
    PSUM_SCATTER,
    all_gather,
    all_gather_p,
    psum_scatter,
    psum_scatter_p,
)
from shmap_compiler.collectives.pbroadcast import PBROADCAST, pbroadcast, pbroadcast_p
from shmap_compiler.collectives.ppermute import PPERMUTE, ppermute, ppermute_p
from shmap_compiler.collectives.ragged_all_to_all import (
    RAGGED_ALL_TO_ALL,
    ragged_all_to_all,
    ragged_all_to_all_p,
)
from shmap_compiler.collectives.record import (
    Collective,
    Combines,
    JaxForm,
    Payload,
    Result,
    Waits,
)

RECORDS: tuple[Collective, ...] = (
    PSUM,
    PMAX,
    PMIN,
    ALL_GATHER,
    PSUM_SCATTER,
    ALL_TO_ALL,
    PPERMUTE,
    RAGGED_ALL_TO_ALL,
    PBROADCAST,
    AXIS_INDEX,
)
"""Every collective. The other rooms make their tables from it, and tracing rejects collectives
that are not in it: no check would see what devices wait in."""

COLLECTIVES = frozenset(record.primitive for record in RECORDS)

POINT_TO_POINT = frozenset({"psend", "precv"})
"""Primitives of JAX's, for GPUs only, that have no form in this family and stay as they are."""

JAX_FORMS: dict[str, JaxForm] = {form.name: form for record in RECORDS for form in record.forms}

_BY_PRIMITIVE = {record.primitive: record for record in RECORDS}
_BY_JAX_FORM = {form.name: record for record in RECORDS for form in record.forms}


def record_of(primitive: Primitive) -> Collective | None:
    """The record of a collective, in the form of this family or in one of JAX's."""
    return _BY_PRIMITIVE.get(primitive) or _BY_JAX_FORM.get(primitive.name)


def record_in_jax_form(name: str) -> Collective | None:
    """The record of the collective that a primitive of JAX's with this name stands for."""
    return _BY_JAX_FORM.get(name)


def function_of_lax(name: str) -> str:
    """The function of `jax.lax` that a primitive of JAX's stands for; other names are returned."""
    record = record_in_jax_form(name)
    return name if record is None or name in record.functions else record.functions[0]


__all__ = [
    "COLLECTIVES",
    "JAX_FORMS",
    "POINT_TO_POINT",
    "RECORDS",
    "Collective",
    "Combines",
    "JaxForm",
    "Payload",
    "Result",
    "Waits",
    "all_gather",
    "all_gather_p",
    "all_to_all",
    "all_to_all_p",
    "axis_index",
    "axis_index_p",
    "function_of_lax",
    "pbroadcast",
    "pbroadcast_p",
    "pmax",
    "pmax_p",
    "pmin",
    "pmin_p",
    "ppermute",
    "ppermute_p",
    "psum",
    "psum_p",
    "psum_scatter",
    "psum_scatter_p",
    "ragged_all_to_all",
    "ragged_all_to_all_p",
    "record_in_jax_form",
    "record_of",
]
