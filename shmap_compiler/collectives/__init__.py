"""The collectives of the Graph: one small family, named by mesh axes.

Each file defines one primitive (or one kind), always in the same order: the function that binds it,
its type, its lowering to StableHLO, its derivative, its batching, and the registration of these
last. All are per-device operations: shapes are those of one device's block.

Common parameters: `axes`, the mesh axes over which devices talk, major axis first; `groups`, a
partition of 0..n-1 (n the product of the axes' sizes) into subgroups of equal size, or None for one
group of all; `size`, how many devices are in one group.
"""

from shmap_compiler.collectives.all_reduce import pmax, pmax_p, pmin, pmin_p, psum, psum_p
from shmap_compiler.collectives.all_to_all import all_to_all, all_to_all_p
from shmap_compiler.collectives.axis_index import axis_index, axis_index_p
from shmap_compiler.collectives.gather_scatter import (
    all_gather,
    all_gather_p,
    psum_scatter,
    psum_scatter_p,
)
from shmap_compiler.collectives.pbroadcast import pbroadcast, pbroadcast_p
from shmap_compiler.collectives.ppermute import ppermute, ppermute_p
from shmap_compiler.collectives.ragged_all_to_all import ragged_all_to_all, ragged_all_to_all_p

COLLECTIVES = (
    psum_p,
    pmax_p,
    pmin_p,
    all_gather_p,
    psum_scatter_p,
    all_to_all_p,
    ppermute_p,
    ragged_all_to_all_p,
    pbroadcast_p,
    axis_index_p,
)

__all__ = [
    "COLLECTIVES",
    "all_gather",
    "all_gather_p",
    "all_to_all",
    "all_to_all_p",
    "axis_index",
    "axis_index_p",
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
]
