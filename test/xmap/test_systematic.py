"""Samples of all the ways of nesting maps and of contracting: the original's NestedMap and Pdot*.

The oracle is the same computation by position. Samples are computed together, as compiling takes
most of the time of each.
"""

import itertools
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching
from named_programs import SQUARE

from shmap_compiler import named, xmap

# ----------------------------------------------------- testNestedMap: vmap(xmap) and xmap(xmap)

vmapped_at_p = Primitive("vmapped_at")
vmapped_at_p.def_abstract_eval(lambda x, *, along, dimension: x)


def _move(axis, args, dims, *, along, dimension):
    """Moves the dimension of the outer map, so that rules meet it at each place."""
    (x,), (d,) = args, dims
    if axis.name != along or d is None:
        return vmapped_at_p.bind(x, along=along, dimension=dimension), d
    return jnp.moveaxis(x, d, dimension), dimension


batching.fancy_primitive_batchers[vmapped_at_p] = _move

SIZES = {"n": 2, "k": 3, "m": 5, "x": 4, "y": 6, "v": 7}
IN_AXES = [
    {},
    *({at: "x"} for at in range(3)),
    *({i: "x", j: "y"} for i in range(4) for j in range(4) if i != j),
]


def inserted(names, axes):
    names = list(names)
    for at, name in sorted(axes.items()):
        names.insert(at, name)
    return names


def nested_map(rng):
    """(the function of two arrays, the einsum that is the same)."""
    ins = [rng.choice(IN_AXES) for _ in range(2)]
    names = sorted({name for axes in ins for name in axes.values()})
    places = rng.choice(list(itertools.permutations(range(2 + len(names)), len(names))))
    out = dict(zip(places, names, strict=True))
    around = [rng.choice([*range(3 + len(axes)), None]) for axes in ins]
    if around == [None, None]:
        around[0] = 0
    result, at, is_xmap = rng.randrange(3 + len(names)), rng.randrange(3), rng.random() < 0.5

    def product(x, y):
        return vmapped_at_p.bind(jnp.einsum("nk,km->nm", x, y), along="v", dimension=at)

    inner = xmap(product, tuple(ins), out)
    if is_xmap:
        outer_axes = tuple({} if d is None else {d: "v"} for d in around)
        fun = xmap(inner, outer_axes, {result: "v"})
    else:
        fun = jax.vmap(inner, tuple(around), result, axis_name="v")
    subscripts = [inserted(s, axes) for s, axes in zip(("nk", "km"), ins, strict=True)]
    for s, d in zip(subscripts, around, strict=True):
        if d is not None:
            s.insert(d, "v")
    z = inserted("nm", out)
    z.insert(result, "v")
    return fun, [*subscripts, z]


def test_nested_maps():
    rng = random.Random(0)
    cases = [nested_map(rng) for _ in range(24)]
    arrays = np.random.default_rng(0)
    args = [
        [arrays.normal(size=[SIZES[n] for n in s]).astype(np.float32) for s in subscripts[:2]]
        for _, subscripts in cases
    ]
    found = jax.jit(lambda args: [f(*xs) for (f, _), xs in zip(cases, args, strict=True)])(args)
    for (_, (x, y, z)), xs, got in zip(cases, args, found, strict=True):
        equation = f"{''.join(x)},{''.join(y)}->{''.join(z)}"
        want = np.einsum(equation, *xs)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=equation)


# ------------------------------------------- testPdotSystematic, testPdotVJPSystematic: all specs

SHAPES = [(2,), (2, 4, 2, 1)]


def matchings(left, right, start=0, taken=frozenset()):
    """All ways to match dimensions of equal sizes: tuples of pairs."""
    yield ()
    for i in range(start, len(left)):
        for j in range(len(right)):
            if left[i] == right[j] and j not in taken:
                for more in matchings(left, right, i + 1, taken | {j}):
                    yield ((i, j), *more)


def size_of(axes):
    return math.prod(SQUARE.shape[a] for a in axes)


class Contraction:
    """Of the matched dimensions, some are contracted, others batched; each by name or position.

    Attributes:
      pairs: "contract" and "batch", each by "name" and by "position": pairs of dimensions of the
        full arrays.
      names: those of the pairs by name, first the contracted ones.
    """

    def __init__(self, shapes, matching, rng, prefix):
        self.shapes = shapes
        self.pairs = {kind: [] for kind in itertools.product(("contract", "batch"), ("n", "p"))}
        for pair in matching:
            rng.choice(list(self.pairs.values())).append(pair)
        by_name = [*self.pairs["contract", "n"], *self.pairs["batch", "n"]]
        self.names = [f"{prefix}{k}" for k in range(len(by_name))]
        self.sizes = {n: shapes[0][i] for n, (i, _) in zip(self.names, by_name, strict=True)}
        contracted = len(self.pairs["contract", "n"])
        self.contracted, self.batched = self.names[:contracted], self.names[contracted:]
        self.in_axes = [{p[k]: n for n, p in zip(self.names, by_name, strict=True)} for k in (0, 1)]

    def dimensions(self, kind):
        """The contracting or batch dimensions of both full arrays."""
        pairs = [*self.pairs[kind, "n"], *self.pairs[kind, "p"]]
        return tuple(zip(*pairs, strict=True)) or ((), ())

    def positions(self, kind):
        """Those by position, counted without named dimensions."""
        pairs = self.pairs[kind, "p"]
        return tuple(
            [p[k] - sum(at < p[k] for at in self.in_axes[k]) for p in pairs] for k in (0, 1)
        )

    def by_name(self, x, y):
        return named.pdot(
            x, y, tuple(self.contracted), self.positions("contract"), self.positions("batch")
        )

    def by_position(self, x, y):
        return lax.dot_general(x, y, (self.dimensions("contract"), self.dimensions("batch")))

    def resources(self, rng):
        """A random assignment of the names to the axes of SQUARE, each at most once."""
        assigned, free = {}, [("x",), ("y",)]
        for name in rng.sample(self.names, len(self.names)):
            for axes in list(free):
                if name not in assigned and self.sizes[name] % size_of(axes) == 0:
                    assigned[name] = axes
                    free.remove(axes)
        return assigned


def contractions(rng, count, prefix):
    cases = []
    for k in range(count):
        shapes = [rng.choice(SHAPES), SHAPES[1]] if k % 4 else [SHAPES[0], SHAPES[0]]
        matching = rng.choice(list(matchings(*shapes))[1:])  # the first one is empty
        cases.append(Contraction(shapes, matching, rng, f"{prefix}{k}_"))
    return cases


def with_arrays(cases, shapes_of):
    rng = np.random.default_rng(1)
    return [[rng.normal(size=s).astype(np.float32) for s in shapes_of(c)] for c in cases]


def assert_close(cases, found, wanted):
    for case, got, want in zip(cases, found, wanted, strict=True):
        message = f"{case.shapes} {case.pairs}"
        jax.tree.map(
            lambda g, w, m=message: np.testing.assert_allclose(g, w, atol=1e-5, err_msg=m),
            got,
            want,
        )


def test_contractions():
    rng = random.Random(2)
    cases = contractions(rng, 32, "n")
    args = with_arrays(cases, lambda c: c.shapes)
    assigned = {name: axes for c in cases for name, axes in c.resources(rng).items()}
    assert len(assigned) > 12
    f = xmap(
        lambda args: [c.by_name(*xs) for c, xs in zip(cases, args, strict=True)],
        ([c.in_axes for c in cases],),
        [[*c.batched, ...] for c in cases],
        axis_resources=assigned,
        mesh=SQUARE,
    )
    wanted = [c.by_position(*xs) for c, xs in zip(cases, args, strict=True)]
    assert_close(cases, f(args), wanted)


def test_derivatives_of_contractions():
    """Taken inside xmap, where fewer names may be in scope at once: see `trace_named`."""
    rng = random.Random(3)
    for group in range(2):
        cases = contractions(rng, 5, f"g{group}_")
        outs = [c.by_position(*map(jnp.zeros, c.shapes)).shape for c in cases]
        shapes = {c: (*c.shapes, out) for c, out in zip(cases, outs, strict=True)}
        args = with_arrays(cases, shapes.get)
        assigned = {name: axes for c in cases for name, axes in c.resources(rng).items()}

        def pulled(args, way, cases=cases):
            """The cotangents of both factors of each product, by a method of `Contraction`."""
            pulls = [
                jax.vjp(getattr(c, way), *xs[:2])[1] for c, xs in zip(cases, args, strict=True)
            ]
            return [pull(xs[2]) for pull, xs in zip(pulls, args, strict=True)]

        f = xmap(
            lambda args, pulled=pulled: pulled(args, "by_name"),
            ([[*c.in_axes, [*c.batched, ...]] for c in cases],),
            [tuple(c.in_axes) for c in cases],
            axis_resources=assigned,
            mesh=SQUARE,
        )
        assert_close(cases, f(args), pulled(args, "by_position"))
