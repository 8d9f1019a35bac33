"""The three interpretations of a body: as JAX, by the oracle, and as sets of varying axes."""

from functools import partial
from typing import Any

import jax
from oracle import Blocks, Mesh

from programs.body import Axes, Body, Op, interpret
from programs.collective import COLLECTIVE
from programs.control import CONTROL
from programs.exact import check_exact, magnitude
from programs.local import LOCAL, SMOOTH

RULES = {**LOCAL, **SMOOTH, **COLLECTIVE, **CONTROL}


def run_jax(body: Body, *values: jax.Array) -> tuple[jax.Array, ...]:
    """What one device computes, inside `shard_map`."""
    return interpret(body, values, apply_jax)


def apply_jax(op: Op, *values: jax.Array) -> Any:
    run = (run_jax,) if op.name in CONTROL else ()
    return RULES[op.name].jax(*run, *values, **op.params)


def run_oracle(mesh: Mesh, body: Body, *values: Blocks) -> tuple[Blocks, ...]:
    """What all devices compute; raises `Inexact` where a float may be rounded."""
    return interpret(body, values, partial(apply_oracle, mesh))


def apply_oracle(mesh: Mesh, op: Op, *values: Blocks) -> Any:
    rule = RULES[op.name].oracle
    if op.name in CONTROL:
        return rule(partial(run_oracle, mesh), mesh, *values, **op.params)
    result = rule(mesh, *values, **op.params)
    if op.name not in SMOOTH:
        check_exact(result, result[0].dtype)
        magnitudes = [[magnitude(block) for block in blocks] for blocks in values]
        check_exact(rule(mesh, *magnitudes, **op.params), result[0].dtype)
    return result


def run_varying(mesh: Mesh, body: Body, *values: Axes) -> tuple[Axes, ...]:
    """The mesh axes along which the results may differ."""
    return interpret(body, values, partial(apply_varying, mesh))


def apply_varying(mesh: Mesh, op: Op, *values: Axes) -> Any:
    run = (partial(run_varying, mesh),) if op.name in CONTROL else ()
    return RULES[op.name].varying(*run, mesh, *values, **op.params)


def run_rounded(body: Body, *values: bool) -> tuple[bool, ...]:
    """Which results come from an operation that rounds."""
    return interpret(body, values, lambda op, *_: (op.name in SMOOTH,) * RULES[op.name].results)
