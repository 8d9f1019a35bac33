"""Programs that JAX itself does not run, or runs wrongly: as of JAX 0.10 and 0.12, on the CPU.

`jax.shard_map` takes none of them. Ours does, but for a body under `custom_jvp` or `custom_vjp`:
JAX traces the derivative rules of these when a derivative is taken, by rules of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from programs.body import Op
from programs.collective import axis_names
from programs.program import Program


def runs_in_jax(program: Program, transformations: Collection[str] = ()) -> bool:
    """Whether `jax.shard_map` gives right results for the program under the transformations."""
    ops = list(program.body.walk())
    return all(_lowers(op, program) for op in ops) and _has_rules(ops, transformations)


def rules_run(program: Program, transformations: Collection[str]) -> bool:
    """Whether JAX can transform the bodies that have derivative rules of their own."""
    return all(
        _has_rules(call.params["body"].walk(), transformations)
        for call in program.body.walk()
        if call.params.get("wrapper") in ("custom_jvp", "custom_vjp")
    )


def _lowers(op: Op, program: Program) -> bool:
    """JAX has no `pbroadcast` on the CPU, and permutes in the order of the mesh only."""
    if op.name not in ("ppermute", "pshuffle"):
        return op.name != "pbroadcast"
    places = [list(program.mesh).index(axis) for axis in axis_names(op.params["axis_name"])]
    return places == sorted(places)


def _has_rules(ops: Iterable[Op], transformations: Collection[str]) -> bool:
    return not any(
        ("vmap" in transformations and not _has_batches(op))
        or ("grad" in transformations and not _has_transpose(op))
        for op in ops
    )


def _has_batches(op: Op) -> bool:
    """JAX's vmap knows no groups, and takes an untiled `psum_scatter` for a wrong shape."""
    untiled = op.name == "psum_scatter" and not op.params["tiled"]
    return not untiled and "axis_index_groups" not in op.params


def _has_transpose(op: Op) -> bool:
    """JAX mixes up shapes of `pbroadcast`, and the two dimensions of an untiled `all_to_all`."""
    if op.name == "all_to_all" and not op.params["tiled"]:
        return op.params["split_axis"] == op.params["concat_axis"]
    return op.name != "pbroadcast"
