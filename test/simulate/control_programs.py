"""Random bodies with collectives inside of branches, loops and calls; the same for the same seed.

Whether devices take the same way depends on the predicate: on the position of the device, on its
data, on a reduction over one axis or both, on an argument that all devices have. So some bodies
hang, and some are rejected though they do not.
"""

import random

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

MESH = jax.make_mesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
SPECS = {"mesh": MESH, "in_specs": (P("i", "j"), P()), "out_specs": P("i", "j")}
AXES = ("i", "j", ("i", "j"))


def arguments(seed):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((4, 4)).astype(np.float32), np.int32(seed % 3)


def body(seed):
    """A function of a 2x2 block and a number that all devices have."""
    steps = Draw(random.Random(seed)).steps(depth=0)

    def program(x, n):
        return run(steps, x, n)

    return program


def run(steps, x, n):
    for step in steps:
        x = step(x, n)
    return x


class Draw:
    def __init__(self, rng):
        self.rng = rng

    def steps(self, depth):
        kinds = [self.local, self.collective]
        if depth < 2:
            kinds += [self.branch, self.loop, self.call, self.switch]
        count = self.rng.randint(1, 3) if depth else self.rng.randint(2, 4)
        return [self.rng.choice(kinds)(depth) for _ in range(count)]

    def local(self, depth):
        factor = self.rng.choice([0.5, -1.0, 2.0])
        return lambda x, n: jnp.sin(x) * factor

    def collective(self, depth):
        axes, one = self.rng.choice(AXES), self.rng.choice("ij")
        return self.rng.choice(
            [
                lambda x, n: lax.psum(x, axes) / 4,
                lambda x, n: lax.pmax(x, axes),
                lambda x, n: lax.all_gather(x, one)[1],
                lambda x, n: lax.ppermute(x, one, [(0, 1), (1, 0)]),
                lambda x, n: jnp.tile(lax.psum_scatter(x, one, tiled=True), (2, 1)),
                lambda x, n: lax.all_to_all(x, one, 0, 1, tiled=True).reshape(2, 2),
            ]
        )

    def number(self):
        """A small number, equal on all devices or not."""
        axes = self.rng.choice(AXES)
        one = self.rng.choice("ij")
        if self.rng.random() < 0.6:
            return self.rng.choice(
                [
                    lambda x, n: n,
                    lambda x, n: (lax.psum(x, ("i", "j"))[0, 0] > 0).astype(jnp.int32),
                    lambda x, n: lax.pmax((x[0, 0] > 0).astype(jnp.int32), ("i", "j")),
                ]
            )
        return self.rng.choice(
            [
                lambda x, n: lax.axis_index(one),
                lambda x, n: lax.axis_index(one) * 0 + 1,  # varies in name only
                lambda x, n: (lax.psum(x, axes)[0, 0] > 0).astype(jnp.int32),
                lambda x, n: (x[0, 0] > 0).astype(jnp.int32),
            ]
        )

    def branch(self, depth):
        number, one, other = self.number(), self.steps(depth + 1), self.steps(depth + 1)
        return lambda x, n: lax.cond(
            number(x, n) > 0, lambda y: run(one, y, n), lambda y: run(other, y, n), x
        )

    def switch(self, depth):
        number, branches = self.number(), [self.steps(depth + 1) for _ in range(3)]
        return lambda x, n: lax.switch(
            number(x, n), [lambda y, b=b: run(b, y, n) for b in branches], x
        )

    def loop(self, depth):
        number, inside = self.number(), self.steps(depth + 1)
        static = self.rng.random() < 0.3

        def play(x, n):
            if static:
                return lax.fori_loop(0, 2, lambda _, y: run(inside, y, n), x)
            most = number(x, n)
            return lax.while_loop(
                lambda s: s[1] < most, lambda s: (run(inside, s[0], n), s[1] + 1), (x, 0)
            )[0]

        return play

    def call(self, depth):
        inside = self.steps(depth + 1)
        jitted = jax.jit(lambda x, n: run(inside, x, n))
        return lambda x, n: jitted(x, n)
