"""Operations that run a body: loops, branches, and calls under JAX's wrappers.

The oracle keeps the devices in lock step: it runs every branch, and as many trips as any device
makes, on all of them; each device keeps what its own predicate selects. So a body communicates only
where the predicate is the same on all devices: elsewhere real devices would wait for ever. The
`varying` rules see to that, since a predicate that a loop carries may vary from the second trip on.

Every rule gets `run(body, *values)` first, which is the interpretation that it belongs to. For the
oracle, values may be dual (`programs.dual`).
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from oracle import Blocks, Mesh

from programs.body import Axes, Body, Rule, Stuck
from programs.collective import COMMUNICATES
from programs.dual import each, innermost
from programs.value import Value


def select(predicates: Blocks, chosen: Blocks, otherwise: Blocks) -> Blocks:
    return [x if p else y for p, x, y in zip(predicates, chosen, otherwise, strict=True)]


def on_all_devices(mesh: Mesh, value: Any) -> Blocks:
    return [np.asarray(value)] * prod(mesh.values())


def fixed_point(step: Callable[[Axes], Axes], axes: Axes) -> Axes:
    while not step(axes) <= axes:
        axes |= step(axes)
    return axes


def check_no_wait(predicate: Axes, *bodies: Body) -> None:
    """Raises `Stuck` if devices differ about whether they run a body that communicates."""
    if predicate and any(op.name in COMMUNICATES for body in bodies for op in body.walk()):
        raise Stuck


def scan_jax(run, init, const, xs, *, body, reverse, unroll):
    return lax.scan(
        lambda carry, x: run(body, carry, const, x), init, xs, reverse=reverse, unroll=unroll
    )


def row(index: int, blocks: Blocks) -> Blocks:
    return [np.asarray(block[index]) for block in blocks]


def stack(*rows: Blocks) -> Blocks:
    return [np.stack(blocks) for blocks in zip(*rows, strict=True)]


def scan_oracle(run, mesh, carry, const, xs, *, body, reverse, unroll):
    steps = range(len(innermost(xs)[0]))
    ys: dict[int, Any] = {}
    for step in reversed(steps) if reverse else steps:
        carry, ys[step] = run(body, carry, const, each(partial(row, step), xs))
    return carry, each(stack, *(ys[step] for step in steps))


def scan_varying(run, mesh, init, const, xs, *, body, reverse, unroll):
    carry = fixed_point(lambda carry: run(body, carry, const, xs)[0], init)
    return carry, run(body, carry, const, xs)[1]


def draw_scan(scope):
    xs = scope.operand(lambda v: v.shape and v.shape[0] > 0)
    init, const = scope.operand(), scope.operand()
    x = Value(row(0, scope[xs].blocks), scope[xs].varying)
    inner = scope.inner(scope[init], scope[const], x)
    params = {"reverse": scope.choose([False, True]), "unroll": scope.choose([1, 2])}
    return (init, const, xs), {"body": inner.body(scope[init], None), **params}


def fori_jax(run, init, const, *, body, trips):
    return lax.fori_loop(0, trips, lambda trip, carry: run(body, trip, carry, const)[0], init)


def fori_oracle(run, mesh, carry, const, *, body, trips):
    for trip in range(trips):
        (carry,) = run(body, on_all_devices(mesh, np.int32(trip)), carry, const)
    return carry


def fori_varying(run, mesh, init, const, *, body, trips):
    return fixed_point(lambda carry: run(body, frozenset(), carry, const)[0], init)


def draw_fori(scope):
    init, const = scope.operand(), scope.operand()
    trip = Value(on_all_devices(scope.mesh, np.int32(0)), frozenset())
    body = scope.inner(trip, scope[init], scope[const]).body(scope[init])
    return (init, const), {"body": body, "trips": scope.choose([2, 3, 1, 0])}


# A while loop makes as many trips as an integer says, modulo this.
TRIPS = 4


def while_jax(run, count, init, const, *, body):
    def step(state):
        trip, carry = state
        return trip + 1, run(body, carry, const)[0]

    trips = count % TRIPS
    return lax.while_loop(lambda state: state[0] < trips, step, (jnp.int32(0), init))[1]


def while_oracle(run, mesh, count, carry, const, *, body):
    trips = [int(block) % TRIPS for block in count]
    for trip in range(max(trips)):
        (after,) = run(body, carry, const)
        carry = each(partial(select, [trip < own for own in trips]), after, carry)
    return carry


def while_varying(run, mesh, count, init, const, *, body):
    check_no_wait(count, body)
    return fixed_point(lambda carry: run(body, carry, const)[0], init | count)


def draw_while(scope):
    count = scope.scalar("i")
    init, const = scope.operand(), scope.operand()
    inner = scope.inner(scope[init], scope[const], collectives=not scope[count].varying)
    return (count, init, const), {"body": inner.body(scope[init])}


def switch_jax(run, index, x, y, *, branches):
    functions = [partial(run, branch) for branch in branches]
    if index.dtype == bool:
        return lax.cond(index, functions[1], functions[0], x, y)[0]
    return lax.switch(index, functions, x, y)[0]


def switch_oracle(run, mesh, index, x, y, *, branches):
    numbers = [np.clip(int(block), 0, len(branches) - 1) for block in index]

    def choose(*results: Blocks) -> Blocks:
        return [results[number][device] for device, number in enumerate(numbers)]

    return each(choose, *(run(branch, x, y)[0] for branch in branches))


def switch_varying(run, mesh, index, x, y, *, branches):
    check_no_wait(index, *branches)
    return index.union(*(run(branch, x, y)[0] for branch in branches))


def draw_switch(scope):
    index = scope.scalar("bi")
    x, y = scope.operand(), scope.operand()
    inner = partial(scope.inner, scope[x], scope[y], collectives=not scope[index].varying)
    branches = tuple(inner().body(scope[x]) for _ in range(2 if scope[index].kind == "b" else 3))
    return (index, x, y), {"branches": branches}


def with_custom_jvp(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


def with_custom_vjp(function):
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(
        lambda *args: (function(*args), args), lambda args, ct: jax.vjp(function, *args)[1](ct)
    )
    return wrapped


WRAPPERS = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "custom_jvp": with_custom_jvp,
    "custom_vjp": with_custom_vjp,
}


def draw_call(scope):
    x, y = scope.operand(), scope.operand()
    body = scope.inner(scope[x], scope[y]).body(None)
    return (x, y), {"wrapper": scope.choose(list(WRAPPERS)), "body": body}


CONTROL: dict[str, Rule] = {
    "scan": Rule(scan_jax, scan_oracle, scan_varying, draw_scan, results=2),
    "fori_loop": Rule(fori_jax, fori_oracle, fori_varying, draw_fori),
    "while_loop": Rule(while_jax, while_oracle, while_varying, draw_while),
    "switch": Rule(switch_jax, switch_oracle, switch_varying, draw_switch),
    "call": Rule(
        lambda run, x, y, wrapper, body: WRAPPERS[wrapper](partial(run, body))(x, y)[0],
        lambda run, mesh, x, y, wrapper, body: run(body, x, y)[0],
        lambda run, mesh, x, y, wrapper, body: run(body, x, y)[0],
        draw_call,
    ),
}
