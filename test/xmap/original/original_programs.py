"""Programs for JAX's former xmap and for ours, named after the tests of its suite (xmap_test.py).

Each takes an `Api`: the functions of one of the two. All else is `jax`, in the version at hand.
What the original returned in JAX 0.4.30 is in results.json, made by record.py.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Api:
    """
    Attributes:
      lax: `jax.lax`, with `pdot`, `xeinsum` and `pgather`.
      mesh: the context manager of a mesh of some shape and names of axes.
      jit: jits a function on such a mesh: `jit(fun, mesh, in_spec, out_spec)`.
      constraint: constrains the sharding of a value: `constraint(x, mesh, spec)`.
    """

    xmap: Callable[..., Any]
    lax: Any
    SerialLoop: Any
    serial_loop: Any
    mesh: Callable[..., Any]
    jit: Callable[..., Any]
    constraint: Callable[..., Any]


PROGRAMS: dict[str, Callable[[Api], Any]] = {}
ERRORS: dict[str, Callable[[Api], Any]] = {}


def program(fun):
    PROGRAMS[fun.__name__] = fun
    return fun


def error(fun):
    ERRORS[fun.__name__] = fun
    return fun


def numbers(*shape):
    return np.random.RandomState(0).uniform(-1, 1, shape).astype(np.float32)


# XMapTest


@program
def basic(api):
    def f(a, b):
        return a * 2, b * 4

    f = api.xmap(
        f,
        in_axes=({0: "a", 1: "b"}, ["c", ...]),
        out_axes=({0: "a", 1: "b"}, ["c", ...]),
        axis_resources={"a": "x", "b": "y", "c": "x"},
    )
    with api.mesh((2, 2), ("x", "y")):
        return f(numbers(16, 10, 4), numbers(6, 7))


@program
def collective_reduce(api):
    def f(a, b):
        return api.lax.psum(a * 2, "a"), b * 4

    f = api.xmap(
        f,
        in_axes=(["a", "b", ...], {0: "c"}),
        out_axes=(["b", ...], {0: "c"}),
        axis_resources={"a": "x", "b": "y", "c": "x"},
    )
    with api.mesh((2, 2), ("x", "y")):
        return f(numbers(16, 10, 4), numbers(6, 7))


@program
def collective_permute_1d(api):
    perm = np.array([3, 1, 2, 0])
    f = api.xmap(
        lambda x: api.lax.pshuffle(x, "i", perm),
        in_axes=["i", ...],
        out_axes=["i", ...],
        axis_resources={"i": "x"},
    )
    with api.mesh((4,), ("x",)):
        return f(numbers(4, 2))


@program
def collective_permute_2d(api):
    perm = np.arange(8).reshape(4, 2)[::-1].ravel()
    f = api.xmap(
        lambda x: api.lax.pshuffle(x, ("i", "j"), perm),
        in_axes=["i", "j", ...],
        out_axes=["i", "j", ...],
        axis_resources={"i": "x", "j": "y"},
    )
    with api.mesh((4, 2), ("x", "y")):
        return f(numbers(4, 2, 3))


@program
def collective_all_gather(api):
    f = api.xmap(
        lambda x: api.lax.all_gather(x, "i") + api.lax.axis_index("i"),
        in_axes=["i", ...],
        out_axes=["i", ...],
        axis_resources={"i": "x"},
    )
    with api.mesh((4,), ("x",)):
        return f(np.arange(4, dtype=np.int32))


@program
def collective_reduce_scatter(api):
    f = api.xmap(
        lambda x: api.lax.psum_scatter(api.lax.all_gather(x, "i") + api.lax.axis_index("i"), "i"),
        in_axes=["i", ...],
        out_axes=["i", ...],
        axis_resources={"i": "x"},
    )
    with api.mesh((4,), ("x",)):
        return f(np.arange(4, dtype=np.int32))


@program
def one_logical_two_mesh_axes_basic(api):
    f = api.xmap(
        lambda v: (api.lax.psum(v * 2, "a"), v * 4),
        in_axes=["a", ...],
        out_axes=([...], {1: "a"}),
        axis_resources={"a": ("x", "y")},
    )
    with api.mesh((2, 2), ("x", "y")):
        return f(numbers(4, 5))


@program
def skip_first_mesh_dim(api):
    with api.mesh((4, 2), ("x", "y")):
        f = api.xmap(lambda x: (x, x * 2), ["i"], (["i"], ["i"]), axis_resources={"i": "y"})
        return f(numbers(4))


@program
def nested_mesh(api):
    @functools.partial(
        api.xmap, in_axes={1: "a"}, out_axes=({0: "a"}, {}), axis_resources={"a": "y"}
    )
    def f(x):
        y = x * 2

        @functools.partial(
            api.xmap, in_axes={0: "b"}, out_axes=({1: "b"}, {}), axis_resources={"b": "x"}
        )
        def h(y):
            return jnp.sin(y), api.lax.psum(y, ("a", "b"))

        return h(y)

    with api.mesh((4, 2), ("x", "y")):
        return f(numbers(4, 2, 5))


@program
def multiple_calls(api):
    f = api.xmap(
        lambda x, y: x @ y,
        in_axes=(["i", "j", ...], {}),
        out_axes=["i", "j", ...],
        axis_resources={"i": "x", "j": "y"},
    )
    with api.mesh((2, 2), ("x", "y")):
        x, y = numbers(2, 2, 3), numbers(3, 4)
        return f(x, y), f(x + 1, y)


@program
def control_flow(api):
    def body(x):
        return api.lax.fori_loop(0, 10, lambda _, x: api.lax.psum(x, "i"), x)

    with api.mesh((2,), ("x",)):
        return api.xmap(body, ["i", ...], ["i", ...], axis_resources={"i": "x"})(numbers(2, 2) / 99)


@program
def axis_sizes(api):
    f = api.xmap(
        lambda: api.lax.axis_index("i"), in_axes=(), out_axes=["i", ...], axis_sizes={"i": 6}
    )
    return f()


@program
def collective_over_no_name(api):
    f = api.xmap(lambda: api.lax.psum(np.eye(3), "i"), (), [...], axis_sizes={"i": 6})
    return f()


@program
def nested_map(api):
    @functools.partial(api.xmap, in_axes=["i", ...], out_axes={1: "i"})
    def f(x):
        g = api.xmap(lambda y: jnp.sin(y) - api.lax.pmean(y, ("i", "j")), ["j", ...], ["j", ...])
        return g(x)

    return f(numbers(4, 5)), jax.vmap(f)(numbers(2, 4, 5)), jax.vmap(f, 2, 1)(numbers(4, 5, 2))


@program
def nested_sizes_and_loops(api):
    outer = api.xmap(
        lambda x: api.xmap(
            jnp.sin, ["j", ...], ["j", ...], axis_resources={"j": api.SerialLoop(2)}
        )(x),
        ["i", ...],
        ["i", ...],
        axis_resources={"i": "x"},
    )
    with api.mesh((2,), ("x",)):
        return outer(numbers(4, 6))


@program
def batching_post_process(api):
    x = numbers(3, 4)
    f = api.xmap(lambda x: x.T, in_axes={0: "i"}, out_axes={0: "i"})
    return jax.vmap(lambda y: f(x) * y)(np.arange(3.0))


@program
def autodiff_no_broadcast(api):
    f = api.xmap(lambda x: jnp.cos(api.lax.dot(x, jnp.sin(x))), in_axes={0: "i"}, out_axes={0: "i"})
    return jax.grad(lambda x: f(x).sum())(numbers(3, 4))


@program
def jvp_and_linearize(api):
    f = api.xmap(lambda x, y: jnp.sin(x) * y, (["i", ...], ["i", ...]), ["i", ...])
    x, y = numbers(5, 2), numbers(5, 2) + 1
    return jax.jvp(f, (x, y), (y, x)), jax.linearize(f, x, y)[1](y, x)


@program
def broadcast(api):
    x = jnp.asarray(2.0)
    f = api.xmap(lambda x: x, in_axes={}, out_axes=["i"], axis_sizes={"i": 4})
    return f(x)


@program
def nested_broadcast(api):
    x = jnp.asarray(2.0)
    inner = api.xmap(lambda x: x, in_axes={}, out_axes=["i"], axis_sizes={"i": 4})
    return api.xmap(inner, in_axes={}, out_axes=["j", None], axis_sizes={"j": 3})(x)


@program
def loop_basic(api):
    with api.serial_loop("l", 4):
        f = api.xmap(lambda x: x * 2, in_axes=["i"], out_axes=["i"], axis_resources={"i": "l"})
        return f(numbers(16))


@program
def loop_with_mesh(api):
    with api.mesh((2,), ("x",)), api.serial_loop("l", 4):
        f = api.xmap(
            lambda x, y: (x * 2, y - 1),
            in_axes=(["i", "j"], ["j"]),
            out_axes=({0: "i", 1: "j"}, ["j"]),
            axis_resources={"i": ("x", "l"), "j": ()},
        )
        return f(numbers(16, 2), numbers(2))


@program
def loop_anonymous(api):
    f = api.xmap(
        lambda x: (x * 2, jnp.float32(1)),
        ["i"],
        (["i"], [...]),
        axis_resources={"i": api.SerialLoop(4)},
    )
    return f(numbers(16))


@program
def checkpoint(api):
    f = api.xmap(
        jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)) * api.lax.psum(x, "i")),
        ["i", ...],
        ["i", ...],
    )
    return f(numbers(5, 2)), jax.grad(lambda x: f(x).sum())(numbers(5, 2))


@program
def list_mappings(api):
    f = api.xmap(
        lambda tree, y: {"sum": tree["a"] + y, "b": tree["b"]},
        in_axes=({"a": ["i", ...], "b": [None, "j"]}, ["i"]),
        out_axes={"sum": {1: "i"}, "b": ["j", None]},
    )
    return f({"a": numbers(3, 2), "b": numbers(4, 5)}, numbers(3))


@program
def in_jit_and_under_value_and_grad(api):
    f = api.xmap(
        lambda w, x: api.lax.pmean((api.lax.pdot(w, x, "k")) ** 2, "n"),
        (["k"], ["n", "k"]),
        [...],
        axis_resources={"n": "x", "k": "y"},
    )
    with api.mesh((4, 2), ("x", "y")):
        return jax.value_and_grad(f)(numbers(6), numbers(8, 6))


# NamedNumPyTest, NamedNNTest, NewPrimitiveTest


@program
def reductions(api):
    def f(x):
        return [
            getattr(jnp, name)(x, axis=axis)
            for name in ("sum", "max", "min", "mean", "var", "std")
            for axis in (("i",), (0, "i"), ("j", "i"))
        ] + [jax.scipy.special.logsumexp(x, axis=("i",))]

    outs = [["j", ...], ["j", ...], [...]] * 6 + [["j", ...]]
    with api.mesh((2, 2), ("x", "y")):
        f = api.xmap(f, ["i", "j", ...], outs, axis_resources={"i": "x", "j": "y"})
        return f(numbers(4, 6, 3))


@program
def one_hot(api):
    def f(labels):
        return jax.nn.one_hot(labels, 5, axis="c")

    f = api.xmap(f, ["b"], ["b", "c"], axis_sizes={"c": 5}, axis_resources={"b": "x"})
    with api.mesh((2,), ("x",)):
        return f(np.array([0, 3, 4, 1]))


@program
def gather(api):
    x, i = numbers(4, 5, 3), np.array([[0, 3], [2, 1]])
    named = api.xmap(lambda x, i: api.lax.pgather(x, i, ("i",)), (["i", ...], [...]), [...])
    both = api.xmap(
        lambda x, i: api.lax.pgather(x, i, ("i", 0)), (["i", ...], ["k", ...]), ["k", ...]
    )
    return named(x, i), both(x, i * 6)


@program
def pdot_basic(api):
    f = api.xmap(
        lambda x, y: api.lax.pdot(x, y, "i"),
        in_axes=({1: "i"}, {0: "i"}),
        out_axes={},
        axis_resources={"i": "x"},
    )
    with api.mesh((2,), ("x",)):
        return f(numbers(3, 8), numbers(8, 5))


@program
def pdot_batching(api):
    f = api.xmap(
        lambda x, y: api.lax.pdot(x, y, "i"),
        in_axes=({1: "j", 2: "i"}, {0: "j", 1: "i"}),
        out_axes=["j", ...],
        axis_resources={"j": "x", "i": "y"},
    )
    with api.mesh((2, 2), ("x", "y")):
        return f(numbers(2, 8, 4), numbers(8, 4, 5))


@program
def pdot_positions(api):
    f = api.xmap(
        lambda x, y: api.lax.pdot(x, y, "i", ((1,), (1,)), ((0,), (0,))),
        in_axes=(["i", ...], ["i", ...]),
        out_axes=[...],
    )
    return f(numbers(4, 2, 3, 5), numbers(4, 2, 3, 6))


@program
def pdot_vjp(api):
    def loss(x, y, weights):
        f = api.xmap(
            lambda x, y: api.lax.pdot(x, y, ("i", "k")),
            (["i", "k", ...], ["k", "i", "m"]),
            ["m", ...],
            axis_resources={"i": "x"},
        )
        return jnp.vdot(weights, f(x, y))

    with api.mesh((2,), ("x",)):
        return jax.grad(loss, (0, 1))(numbers(4, 3, 2), numbers(3, 4, 5), numbers(5, 2))


@program
def xeinsum(api):
    def of(spec, in_axes, out_axes, *args):
        return api.xmap(lambda *args: api.lax.xeinsum(spec, *args), in_axes, out_axes)(*args)

    x, y = numbers(4, 6), numbers(6, 5)
    return (
        of("{i,j},{j,k}->{i,k}", (["i", "j"], ["j", "k"]), ["i", "k"], x, y),
        of("a{j},{j,k}->a{k}", ([None, "j"], ["j", "k"]), [None, "k"], x, y),
        of("ij{b}->j{b}", ["b", None, None], ["b", None], numbers(3, 4, 6)),
        of("i{b}->{b}", ["b", None], ["b"], x),
        of("ij,jk->ik", ([...], [...]), [...], x, y),
        of("{i}->", ["i"], [], x[0]),
        of("ab{i},bc{i}->ac{i}", (["i", ...], ["i", ...]), ["i", ...], numbers(2, 3, 4),
           numbers(2, 4, 5)),
    )  # fmt: skip


# XMapErrorTest


def simple(api, in_axes=("i", ...), out_axes=("i", ...), args=None, fun=None, mesh=None, **options):
    def run():
        args_ = (numbers(4, 3),) if args is None else args
        return api.xmap(fun or (lambda x: x), in_axes, out_axes, **options)(*args_)

    if mesh is None:
        return run()
    with api.mesh(*mesh):
        return run()


def conflict(api, fun, in_axes, out_axes, *args):
    with api.mesh((2,), ("x",)):
        return api.xmap(fun, in_axes, out_axes, axis_resources={"a": "x", "b": "x"})(*args)


@error
def repeated_axis_resource(api):
    simple(api, ["i"], ["i"], (numbers(4),), axis_resources={"i": ("x", "x")})


@error
def repeated_resource_of_a_value(api):
    conflict(api, lambda x: x, ["a", "b"], ["a", "b"], numbers(2, 2))


@error
def resource_conflict_inner(api):
    conflict(api, lambda x, y: x + y, (["a"], ["b"]), ["a", "b"], numbers(2), numbers(2))


@error
def resource_conflict_out(api):
    conflict(api, lambda x, y: x, (["a"], ["b"]), ["a", "b"], numbers(2), numbers(2))


@error
def undefined_axis_resource(api):
    simple(api, axis_resources={"i": "y"}, mesh=((2,), ("x",)))


@error
def inconsistent_axis_sizes(api):
    simple(api, (["i"], ["i"]), ["i"], (numbers(4), numbers(5)), fun=lambda x, y: x + y)


@error
def inconsistent_axis_sizes_given(api):
    simple(api, axis_sizes={"i": 3})


@error
def axis_that_does_not_divide(api):
    simple(api, args=(numbers(5, 3),), axis_resources={"i": "x"}, mesh=((2,), ("x",)))


@error
def in_axes_rank(api):
    simple(api, {5: "i"}, {0: "i"})


@error
def out_axes_rank(api):
    simple(api, ["i", ...], {5: "i"})


@error
def negative_axes(api):
    simple(api, {-1: "i"}, {0: "i"})


@error
def negative_out_axes(api):
    simple(api, {0: "i"}, {-1: "i"})


@error
def list_axes_rank_assertion(api):
    simple(api, ["i"], ["i", ...])


@error
def list_axes_rank_assertion_of_results(api):
    simple(api, ["i", ...], ["i"])


@error
def extra_mapped_axes_of_a_result(api):
    simple(api, ["i", ...], [...])


@error
def undefined_out_axis(api):
    simple(api, out_axes=["j", ...])


@error
def undefined_axis_in_resources(api):
    simple(api, axis_resources={"j": "x"}, mesh=((2,), ("x",)))


@error
def axes_mismatch(api):
    simple(api, ({"a": ["i"]}, ["i"]), ["i"], (numbers(4), numbers(4)), fun=lambda x, y: x)


@error
def axes_mismatch_of_results(api):
    simple(api, ["i", ...], (["i", ...], ["i", ...]))


@error
def no_results(api):
    simple(api, out_axes=(), fun=lambda x: ())


@error
def empty_argument_trees(api):
    api.xmap(lambda x: x, ["i"], ["i"])({})


@error
def loop_collectives(api):
    simple(
        api,
        ["i"],
        [...],
        (numbers(16),),
        fun=lambda x: api.lax.psum(x, "i"),
        axis_resources={"i": api.SerialLoop(2)},
    )


@error
def resource_conflict_of_a_loop(api):
    loop = api.SerialLoop(2)
    simple(
        api, ["a", "b"], ["a", "b"], axis_resources={"a": loop, "b": loop}, args=(numbers(4, 4),)
    )


@error
def resource_conflict_nested(api):
    def outer(x):
        return api.xmap(lambda y: x + y, ["b"], ["b"], axis_resources={"b": "x"})(jnp.ones(2))

    with api.mesh((2,), ("x",)):
        api.xmap(outer, ["a"], ["a", ...], axis_resources={"a": "x"})(numbers(2))


@error
def mesh_changes_inside(api):
    def outer(x):
        with api.mesh((2,), ("y",)):
            return api.xmap(lambda y: y, ["b"], ["b"], axis_resources={"b": "y"})(x)

    with api.mesh((2,), ("x",)):
        api.xmap(outer, ["a", ...], ["a", ...], axis_resources={"a": "x"})(numbers(2, 2))


@error
def unbound_name(api):
    simple(api, fun=lambda x: api.lax.psum(x, "j"))
