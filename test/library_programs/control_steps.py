"""Steps that run bodies: loops, branches, checkpoint with policies, nested regions."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from library_programs.program import Operation, union

POLICIES = {
    "none": None,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "names": jax.checkpoint_policies.save_only_these_names("kept"),
}


def draw_body(kinds: str, results: str, local: bool = False):
    return lambda scope: {"body": scope.body(kinds, results, local)}


def looped(how_varying, *operands: int):
    """The `varying` rule of a loop whose first operand is the carry, the body's first result."""

    def rule(mesh, *sets, body, **params):
        carried, *rest = (sets[n] for n in operands)
        while True:
            found = how_varying(mesh, body, [carried, *rest])
            if found[0] <= carried:
                return carried.union(*found)
            carried |= found[0]

    return rule


def make(how_varying) -> dict[str, Operation]:
    """The table; `how_varying(mesh, body, sets)` gives the axes of each result of a body."""

    def called(mesh, *sets, body, **params):
        return how_varying(mesh, body, sets)[0]

    def either(mesh, *sets, **bodies):
        predicate, *rest = sets
        return predicate.union(*[how_varying(mesh, b, rest)[0] for b in bodies.values()])

    def either_or_first(mesh, predicate, x, a, **bodies):
        return x | either(mesh, predicate, x, a, **bodies)

    def while_varying(mesh, x, a, body):
        return looped(how_varying, 0, 1)(mesh, x | a, a, body=body)

    def region(mesh, *sets, body, axis, splits, out_split):
        inner = [s | {axis} if split is not None else s for s, split in zip(sets, splits)]  # noqa: B905
        return how_varying(mesh, body, inner)[0] - {axis}

    def draw_branches(scope):
        # Devices that disagree about a predicate must not communicate in its branches.
        local = bool(scope.last_varying(0))
        return {f"branch{k}": scope.body("vm", "v", local) for k in range(2)}

    def draw_region(scope):
        axis = scope.nested_axis()
        splits = (scope.choose([None, 0]), scope.choose([None, 0, 1]))
        sets = [
            scope.last_varying(k) | ({axis} if split is not None else frozenset())
            for k, split in enumerate(splits)
        ]
        body = scope.nested_body("vm", "v", axis, sets)
        inner = how_varying({**scope.mesh, axis: scope.nested[axis]}, body, sets)[0]
        return {
            "body": body,
            "axis": axis,
            "splits": splits,
            "out_split": 0 if axis in inner else None,
        }

    return {
        "scan": Operation("vm", "v", scan, looped(how_varying, 0, 1, 1), draw_body("vvm", "vv")),
        "fori": Operation("vm", "v", fori, looped(how_varying, 0, 1), draw_body("vm", "v")),
        "while": Operation("vm", "v", while_, while_varying, draw_body("vm", "v", True)),
        "map": Operation("mv", "m", map_, called, draw_body("vv", "v")),
        "cond": Operation("svm", "v", cond, either, draw_branches),
        "switch": Operation("svm", "v", switch, either_or_first, draw_branches),
        "checkpoint": Operation(
            "vm",
            "v",
            checkpoint,
            called,
            lambda scope: {
                "body": scope.body("vm", "v", False, scope.complex_steps),
                "policy": scope.choose(sorted(POLICIES)),
            },
        ),
        "checkpoint_scan": Operation(
            "vm",
            "v",
            checkpoint_scan,
            lambda mesh, x, a, **params: looped(how_varying, 0, 1)(mesh, x | a, a, **params),
            lambda scope: {
                "body": scope.body("vm", "v", False, scope.complex_steps),
                "policy": scope.choose(sorted(POLICIES)),
            },
        ),
        "jit": Operation("vm", "v", jit, called, draw_body("vm", "v")),
        "linear_solve": Operation("mv", "v", linear_solve, union, lambda scope: {}),
        "region": Operation("vm", "v", nested_region, region, draw_region),
    }


def scan(how, x, a, body):
    def step(carry, row):
        carry, out = how.run(body, carry, row, a)
        return carry / 2, out

    carry, rows = lax.scan(step, x, a)
    return carry + rows.mean(0)


def fori(how, x, a, body):
    return lax.fori_loop(0, 3, lambda k, v: how.run(body, v, a)[0] / (k + 2.0), x)


def while_(how, x, a, body):
    """A loop without a fixed number of steps has no reverse derivative: `stop_gradient`."""
    x, a = lax.stop_gradient((x, a))

    def unfinished(state):
        k, v = state
        return (k < 4) & (jnp.sum(v * v) > 0.1)

    def step(state):
        k, v = state
        return k + 1, how.run(body, v, a)[0] / 2

    return lax.while_loop(unfinished, step, (0, x))[1]


def map_(how, a, x, body):
    return lax.map(lambda row: how.run(body, row, x)[0], a)


def first_result(how, body, *values):
    return how.run(body, *values)[0]


def cond(how, s, x, a, branch0, branch1):
    branches = [partial(first_result, how, body) for body in (branch0, branch1)]
    return lax.cond(s > 0.3, *branches, x, a)


def switch(how, s, x, a, branch0, branch1):
    branches = [partial(first_result, how, body) for body in (branch0, branch1)]
    branches.append(lambda x, a: x)
    return lax.switch(jnp.int32(3 * jnp.abs(s)), branches, x, a)


def named(how, body, x, a):
    return checkpoint_name(how.run(body, x, a)[0], "kept")


def checkpoint(how, x, a, body, policy):
    run = jax.checkpoint(lambda x, a: named(how, body, x, a) * 0.9, policy=POLICIES[policy])
    return run(x, a)


def checkpoint_scan(how, x, a, body, policy):
    @jax.checkpoint
    def outer(x, a):
        step = jax.checkpoint(
            lambda v, row: (named(how, body, v, a) / 2 + row, None), policy=POLICIES[policy]
        )
        return lax.scan(step, x, a)[0]

    return outer(x, a)


def jit(how, x, a, body):
    return jax.jit(lambda x, a: how.run(body, x, a)[0])(x, a)


def linear_solve(how, a, b):
    diagonal = 2 + jnp.tanh(jnp.diag(a))
    return lax.custom_linear_solve(
        lambda x: diagonal * x,
        b,
        solve=lambda matvec, y: y / diagonal,
        transpose_solve=lambda vecmat, y: y / diagonal,
    )


def nested_region(how, x, a, body, axis, splits, out_split):
    """A region over another mesh axis; it works on whole values, repeated where it splits them."""

    def inner(x, a):
        return how.run(body, x, a)[0]

    n = how.axes[axis]
    specs, operands = [], []
    for value, split in zip((x, a), splits, strict=True):
        entries: list[Any] = [None] * value.ndim
        if split is not None:
            repeats = [1] * value.ndim
            repeats[split] = n
            scale_shape = [1] * value.ndim
            scale_shape[split] = n * value.shape[split]
            ramp = jnp.linspace(0.5, 1.0, n * value.shape[split]).reshape(scale_shape)
            value = jnp.tile(value, repeats) * ramp
            entries[split] = axis
        specs.append(P(*entries))
        operands.append(value)
    out_spec = P(axis) if out_split == 0 else P()
    result = how.region(inner, axis, tuple(specs), out_spec)(*operands)
    return result.reshape(-1, x.shape[0]).mean(0)
