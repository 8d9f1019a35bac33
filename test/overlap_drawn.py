"""Random programs of gathers, products, sums and exchanges, and random forms for what they hold.

A program computes on eight devices, from blocks that differ on each. What is drawn depends on the
shapes of the values so far, so every program is valid; most of its steps read the last value.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from shmap_passes import Pass
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.overlap import form
from shmap_passes.overlap.choose.sites import find_sites
from shmap_passes.overlap.rewrite.inline_local import inline_local
from shmap_passes.overlap.rewrite.inline_steps import inline_steps

from shmap_compiler import shard_map

AXES = {"i": 4, "j": 2}
GROUPS = [("i",), ("j",), ("i", "j"), ("j", "i")]
LARGEST = 40_000
"""No value of a device has more entries."""
SIZES = (8, 16, 24, 32, 48)
ON_ALL = P(("i", "j"))

FORMS: dict[str, tuple[form.FormName, ...]] = {
    "gather-product": ("ring", "rows"),
    "gather-contraction": ("columns",),
    "product-scatter": ("partial-sums", "columns"),
    "product-sum": ("columns",),
    "gather-scatter": ("stages",),
    "all-to-all": ("chunks",),
    "gathering-loop": ("unroll",),
    "row-block": ("row-chunks", "row-stages"),
    "sequence-block": ("sequences", "sequence-sums"),
    "exchange-block": ("summed-chunks",),
}
"""Those that the passes have for a pattern."""

FLAGS = ("barriers", "stacked", "in_place", "wide", "ordered", "shared")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class WriteRandomForms(Pass):
    """Writes a form, drawn among all of its pattern, on most sites."""

    name = "my-write-random-forms"
    needs_body_form = True
    keeps_bits = True

    seed: int = 0

    def run(self, module):
        inline_steps(module)
        inline_local(module)
        draw = random.Random(self.seed)
        body = read_body_form(module)
        wanted = {"blocks": True, "rows": True, "sequences": True, "exchanged": True}
        sites = list(find_sites(module, body, **wanted))
        draw.shuffle(sites)
        for site in sites[: math.ceil(0.85 * len(sites))]:
            name = draw.choice(FORMS[site.pattern])
            parts = draw.choice((1, 2, 4) if name == "partial-sums" else (0, 2, 3, 4, 8))
            flags = {key: draw.random() < 0.5 for key in FLAGS}
            form.write(site.op, form.Form(name, parts, **flags))
        for site in find_sites(module, body, exponentials=True):
            if site.pattern == "softmax" and draw.random() < 0.5:
                form.write(site.op, form.Form("stored-maximum"))


@dataclass(frozen=True)
class Step:
    """What computes a value.

    Attributes:
      text: what it is, for a report.
      shape: of its value.
      reads: the numbers of the values that it reads.
      compute: from those values, and the weights.
    """

    text: str
    shape: Shape
    reads: tuple[int, ...]
    compute: Callable[..., jax.Array]


@dataclass(repr=False)
class Drawn:
    """A random program; equal arguments give the same.

    Attributes:
      seed, size: what it is drawn from, and how many steps it has at most.
      dtype: of its arguments.
      derivative: what of it is computed: "none", or its gradient, taken "inside" the body, inside
        of one under "checkpoint", or "outside" of shard_map.
      shapes: of its values on one device; the first ones are its arguments.
      weights: shapes of what the steps multiply by and add.
    """

    seed: str
    size: int
    dtype: str = field(init=False)
    derivative: str = field(init=False)
    shapes: list[Shape] = field(init=False, default_factory=list)
    weights: list[Shape] = field(init=False, default_factory=list)
    steps: list[Step] = field(init=False, default_factory=list)

    def __post_init__(self):
        self.draw = draw = random.Random(self.seed)
        self.dtype = draw.choice(("float32", "float32", "float32", "bfloat16"))
        self.derivative = draw.choice(("none", "inside", "checkpoint", "outside"))
        for _ in range(draw.randint(1, 2)):
            batch = draw.choice(((), (), (), (draw.choice((4, 8)),)))
            self.shapes.append((*batch, draw.choice(SIZES), draw.choice(SIZES)))
        self.inputs = len(self.shapes)
        for _ in range(self.size):
            step = self._step()
            if step is not None:
                self.steps.append(step)
                self.shapes.append(step.shape)
        read = {number for step in self.steps for number in step.reads}
        self.outputs = [n for n in range(len(self.shapes)) if n not in read]

    def __repr__(self):
        return f"Drawn({self.seed!r}, {self.size})"

    def __str__(self):
        lines = [f"{self.dtype}, derivative: {self.derivative}"]
        lines += [f"  v{n}: {self.shapes[n]}" for n in range(self.inputs)]
        lines += [f"  w{n}: {shape}" for n, shape in enumerate(self.weights)]
        for n, step in enumerate(self.steps, self.inputs):
            reads = ", ".join(f"v{number}" for number in step.reads)
            lines.append(f"  v{n} = {step.text} of {reads}: {step.shape}")
        return "\n".join([*lines, f"  returns {', '.join(f'v{n}' for n in self.outputs)}"])

    def wider(self):
        """The same program on numbers of twice as many bits; it needs JAX's x64 mode."""
        program = Drawn(self.seed, self.size)
        program.dtype = {"float32": "float64", "bfloat16": "float32"}[self.dtype]
        return program

    def arguments(self):
        rng = np.random.default_rng(0)
        values = [rng.standard_normal((8, *shape)) for shape in self.shapes[: self.inputs]]
        values += [rng.standard_normal((8, *shape)) / 4 for shape in self.weights]
        return [jnp.asarray(value, self.dtype) for value in values]

    def function(self, mesh):
        """From arguments to arrays that hold the result of each device."""
        specs = {"in_specs": ON_ALL, "out_specs": ON_ALL, "check_vma": False}
        mapped = shard_map(self._on_a_device, mesh=mesh, **specs)
        if self.derivative != "outside":
            return mapped
        return lambda *args: jax.grad(lambda a: _loss(mapped(*a)))(args)

    def _on_a_device(self, *args):
        blocks = [arg[0] for arg in args]
        if self.derivative in ("none", "outside"):
            results = self._body(blocks)
        else:
            body = jax.checkpoint(self._body) if self.derivative == "checkpoint" else self._body
            results = jax.grad(lambda blocks: _loss(body(blocks)))(blocks)
        return [result[None] for result in results]

    def _body(self, blocks):
        values, weights = list(blocks[: self.inputs]), blocks[self.inputs :]
        for step in self.steps:
            values.append(step.compute(*(values[n] for n in step.reads), weights=weights))
        return [values[n] for n in self.outputs]

    # --------------------------------------------------------------------------------- drawing

    def _step(self) -> Step | None:
        for _ in range(20):
            last = self.draw.random() < 0.75
            number = len(self.shapes) - 1 if last else self.draw.randrange(len(self.shapes))
            step = self.draw.choice(STEPS)(self, number)
            if step is not None and math.prod(step.shape) <= LARGEST:
                return step
        return None

    def group(self) -> tuple[tuple[str, ...], int]:
        """Axes, and the number of devices along them."""
        axes = self.draw.choice(GROUPS)
        return axes, math.prod(AXES[axis] for axis in axes)

    def dimension(self, number: int) -> int:
        return self.draw.randrange(len(self.shapes[number]))

    def weight(self, *shape: int) -> int:
        self.weights.append(shape)
        return len(self.weights) - 1

    def of_shape(self, number: int) -> int:
        """A value of the same shape as another."""
        shape = self.shapes[number]
        return self.draw.choice([n for n, other in enumerate(self.shapes) if other == shape])


def _loss(results):
    return sum((result.astype(jnp.float32) ** 2).mean() for result in results)


def _scaled(shape: Shape, dimension: int, up: int, down: int = 1) -> Shape:
    changed = shape[dimension] * up // down
    return (*shape[:dimension], changed, *shape[dimension + 1 :])


# ------------------------------------------------------------------------------------------ steps


def _gather(drawn: Drawn, n: int) -> Step:
    axes, count = drawn.group()
    dimension = drawn.dimension(n)

    def compute(x, weights):
        return lax.all_gather(x, axes, axis=dimension, tiled=True)

    shape = _scaled(drawn.shapes[n], dimension, count)
    return Step(f"gather along {axes}, dimension {dimension},", shape, (n,), compute)


def _scatter(drawn: Drawn, n: int) -> Step | None:
    axes, count = drawn.group()
    dimension = drawn.dimension(n)
    if drawn.shapes[n][dimension] % count:
        return None

    def compute(x, weights):
        return lax.psum_scatter(x, axes, scatter_dimension=dimension, tiled=True)

    shape = _scaled(drawn.shapes[n], dimension, 1, count)
    return Step(f"psum_scatter along {axes}, dimension {dimension},", shape, (n,), compute)


def _sum(drawn: Drawn, n: int) -> Step:
    axes, _ = drawn.group()
    return Step(f"psum along {axes}", drawn.shapes[n], (n,), lambda x, weights: lax.psum(x, axes))


def _exchange(drawn: Drawn, n: int) -> Step | None:
    axes, count = drawn.group()
    split, concat = drawn.dimension(n), drawn.dimension(n)
    if drawn.shapes[n][split] % count:
        return None

    def compute(x, weights):
        return lax.all_to_all(x, axes, split, concat, tiled=True)

    shape = _scaled(_scaled(drawn.shapes[n], split, 1, count), concat, count)
    return Step(f"all_to_all along {axes}, {split} to {concat},", shape, (n,), compute)


def _times_weight(drawn: Drawn, n: int) -> Step:
    """Along any dimension, from the left or right, transposed or not, with a gathered weight."""
    draw, shape = drawn.draw, drawn.shapes[n]
    names, columns = "abc"[: len(shape)], draw.choice((8, 16, 32))
    contracted = draw.choice(names)
    others = names.replace(contracted, "")
    place = draw.randint(0, len(others))
    out = f"{others[:place]}f{others[place:]}"
    sizes = {**dict(zip(names, shape, strict=True)), "f": columns}
    weight = draw.choice((f"{contracted}f", f"f{contracted}"))
    block = [sizes[name] for name in weight]
    (axes, count), dimension = drawn.group(), draw.randrange(2)
    is_gathered = block[dimension] % count == 0 and draw.random() < 0.4
    if is_gathered:
        block[dimension] //= count
    index, is_first = drawn.weight(*block), draw.random() < 0.3
    spec = f"{weight},{names}->{out}" if is_first else f"{names},{weight}->{out}"

    def compute(x, weights):
        w = weights[index]
        if is_gathered:
            w = lax.all_gather(w, axes, axis=dimension, tiled=True)
        w = w.astype(x.dtype)
        return jnp.einsum(spec, *((w, x) if is_first else (x, w)))

    text = f"{spec} with w{index}" + f" gathered along {axes}, {dimension}," * is_gathered
    return Step(text, tuple(sizes[name] for name in out), (n,), compute)


def _product(drawn: Drawn, n: int) -> Step | None:
    """Of two values, along dimensions of one size; with a batch if they have one."""
    draw, left = drawn.draw, drawn.shapes[n]
    other = draw.randrange(len(drawn.shapes))
    right = drawn.shapes[other]
    if len(left) != len(right) or left[:-2] != right[:-2]:
        return None
    pairs = [(x, y) for x in (-2, -1) for y in (-2, -1) if left[x] == right[y]]
    if not pairs:
        return None
    x, y = draw.choice(pairs)
    batch = "b" * (len(left) - 2)
    operands = batch + ("kmk"[x + 2 :][:2]), batch + ("knk"[y + 2 :][:2])
    spec = f"{','.join(operands)}->{batch}{draw.choice(('mn', 'nm'))}"
    sizes = {"m": left[-3 - x], "n": right[-3 - y], "b": left[0]}

    def compute(a, b, weights):
        return jnp.einsum(spec, a, b.astype(a.dtype)) / 8

    return Step(spec, tuple(sizes[d] for d in spec.partition(">")[2]), (n, other), compute)


def _similarities(drawn: Drawn, n: int) -> Step | None:
    """Of gathered rows with each other, and with what is computed from them."""
    shape, (axes, count) = drawn.shapes[n], drawn.group()
    if len(shape) != 2:
        return None
    rows, text = shape[0] * count, drawn.draw.choice(("rows", "rows and tanh"))

    def compute(x, weights):
        g = lax.all_gather(x, axes, axis=0, tiled=True)
        return g @ (g if text == "rows" else jnp.tanh(g)).T / 8

    return Step(f"similarities of {text} along {axes}", (rows, rows), (n,), compute)


def _attention(drawn: Drawn, n: int) -> Step | None:
    """Of gathered rows of sequences, and the sum of what it gives."""
    shape, (axes, _) = drawn.shapes[n], drawn.group()
    if len(shape) != 3:
        return None
    columns = shape[-1]
    queries, keys, values, out = (drawn.weight(columns, columns) for _ in range(4))

    def compute(x, weights):
        g = lax.all_gather(x, axes, axis=1, tiled=True)
        q, k, v = (g @ weights[number].astype(g.dtype) for number in (queries, keys, values))
        shares = jax.nn.softmax(jnp.einsum("bsk,btk->bst", q, k) / 8)
        summed = jnp.einsum("bst,btk->bsk", shares, v) @ weights[out].astype(g.dtype)
        return lax.psum_scatter(summed, axes, scatter_dimension=1, tiled=True)

    return Step(f"attention along {axes} with w{queries} to w{out}", shape, (n,), compute)


def _elementwise(drawn: Drawn, n: int) -> Step:
    text, compute = drawn.draw.choice(
        (
            ("tanh", lambda x, weights: jnp.tanh(x)),
            ("gelu", lambda x, weights: jax.nn.gelu(x)),
            ("twice", lambda x, weights: x * 2),
            ("f32", lambda x, weights: x.astype(jnp.float32)),
            ("a jitted silu", lambda x, weights: jax.jit(lambda x: jax.nn.silu(x) * 2)(x)),
        )
    )
    return Step(text, drawn.shapes[n], (n,), compute)


def _of_two(drawn: Drawn, n: int) -> Step:
    text, compute = drawn.draw.choice(
        (
            ("sum", lambda x, y, weights: x + y),
            ("entrywise product", lambda x, y, weights: x * y / 4),
            ("the positive", lambda x, y, weights: jnp.where(x > 0, x, y.astype(x.dtype))),
        )
    )
    return Step(text, drawn.shapes[n], (n, drawn.of_shape(n)), compute)


def _bias(drawn: Drawn, n: int) -> Step:
    shape, dimension = drawn.shapes[n], drawn.dimension(n)
    index = drawn.weight(shape[dimension])
    wide = [1] * len(shape)
    wide[dimension] = -1

    def compute(x, weights):
        return x + weights[index].reshape(wide)

    return Step(f"w{index} along {dimension} added to the entries", shape, (n,), compute)


def _along(drawn: Drawn, n: int) -> Step:
    """What needs all entries along a dimension."""
    dimension = drawn.dimension(n)
    text, compute = drawn.draw.choice(
        (
            ("softmax", lambda x, weights: jax.nn.softmax(x, axis=dimension)),
            ("difference from the mean", lambda x, weights: x - x.mean(dimension, keepdims=True)),
        )
    )
    return Step(f"{text} along {dimension}", drawn.shapes[n], (n,), compute)


def _transpose(drawn: Drawn, n: int) -> Step:
    shape = drawn.shapes[n]
    order = drawn.draw.sample(range(len(shape)), len(shape))
    turned = tuple(shape[d] for d in order)
    return Step(f"transpose to {order}", turned, (n,), lambda x, weights: x.transpose(order))


def _slice(drawn: Drawn, n: int) -> Step | None:
    shape, dimension = drawn.shapes[n], drawn.dimension(n)
    if shape[dimension] < 16:
        return None
    smaller = (*shape[:dimension], shape[dimension] - 8, *shape[dimension + 1 :])

    def compute(x, weights):
        return lax.slice_in_dim(x, 0, smaller[dimension], axis=dimension)

    return Step(f"slice along {dimension}", smaller, (n,), compute)


def _joined(drawn: Drawn, n: int) -> Step:
    dimension = drawn.dimension(n)

    def compute(x, y, weights):
        return jnp.concatenate([x, y.astype(x.dtype)], dimension)

    shape = _scaled(drawn.shapes[n], dimension, 2)
    return Step(f"concatenation along {dimension}", shape, (n, drawn.of_shape(n)), compute)


def _layers(drawn: Drawn, n: int) -> Step | None:
    """A scan whose steps gather their weights."""
    shape, (axes, count), draw = drawn.shapes[n], drawn.group(), drawn.draw
    if len(shape) != 2 or shape[1] % count:
        return None
    dimension, is_kept = draw.randrange(2), draw.random() < 0.5
    block = [draw.choice((2, 3, 5)), shape[1], shape[1]]
    block[1 + dimension] //= count
    index = drawn.weight(*block)

    def step(x, w):
        w = lax.all_gather(w, axes, axis=dimension, tiled=True).astype(x.dtype)
        return jnp.tanh(x @ w), None

    def compute(x, weights):
        return lax.scan(step if is_kept else jax.checkpoint(step), x, weights[index])[0]

    text = f"{block[0]} layers of w{index} gathered along {axes}, {dimension}, kept: {is_kept},"
    return Step(text, shape, (n,), compute)


def _mlp(drawn: Drawn, n: int) -> Step | None:
    shape, (axes, count), draw = drawn.shapes[n], drawn.group(), drawn.draw
    if len(shape) != 2 or math.prod(shape) * count > LARGEST:
        return None
    width, is_gated = draw.choice((16, 32)), draw.random() < 0.4
    into, gate = drawn.weight(shape[1], width), drawn.weight(shape[1], width)
    back = drawn.weight(width, shape[1])

    def compute(x, weights):
        weights = [w.astype(x.dtype) for w in weights]
        h = lax.all_gather(x, axes, axis=0, tiled=True)
        z = jnp.tanh(h @ weights[into])
        if is_gated:
            z = z * (h @ weights[gate])
        return lax.psum_scatter(z @ weights[back], axes, scatter_dimension=0, tiled=True)

    text = f"MLP of w{into} and w{back}, gated: {is_gated}, along {axes},"
    return Step(text, shape, (n,), compute)


def _experts(drawn: Drawn, n: int) -> Step | None:
    shape, (axes, count) = drawn.shapes[n], drawn.group()
    if len(shape) != 3 or shape[0] % count or math.prod(shape) * count > LARGEST:
        return None
    width, is_kept = drawn.draw.choice((16, 64)), drawn.draw.random() < 0.7
    into = drawn.weight(shape[0] // count, shape[2], width)
    back = drawn.weight(shape[0] // count, width, shape[2])

    def layer(x, weights):
        weights = [w.astype(x.dtype) for w in weights]
        y = lax.all_to_all(x, axes, 0, 1, tiled=True)
        y = jax.nn.gelu(jnp.einsum("ecd,edh->ech", y, weights[into]))
        return lax.all_to_all(jnp.einsum("ech,ehd->ecd", y, weights[back]), axes, 1, 0, tiled=True)

    compute = layer if is_kept else jax.checkpoint(layer)
    return Step(f"experts w{into}, w{back} along {axes}, kept: {is_kept},", shape, (n,), compute)


STEPS: Sequence[Callable[[Drawn, int], Step | None]] = (
    *(3 * (_gather, _scatter, _times_weight)),
    *(2 * (_product, _elementwise, _of_two, _experts, _mlp, _attention)),
    *(_sum, _similarities, _exchange, _bias, _along, _transpose, _slice, _joined, _layers),
)
