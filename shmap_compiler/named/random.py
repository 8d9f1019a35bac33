"""Samplers of `jax.random` over named shapes.

Each position along the named axes has its own key, derived from its index. Samples therefore do not
depend on the resources that axes are assigned to, and each device draws only its own samples.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler.base.errors import Problem, ProgramName, SpecError
from shmap_compiler.base.untyped import AnyValue, DType, Function, PyTree, Unchecked
from shmap_compiler.named.axes import Axis
from shmap_compiler.named.shapes import NamedShape

Shape = tuple[int, ...] | NamedShape


def fold_in_axes(key: AnyValue, names: tuple[str, ...]) -> AnyValue:
    """A key for each position along named axes.

    Examples:
      >>> def f(x):
      ...     return jax.random.uniform(named.random.fold_in_axes(jax.random.key(0), ("rows",)))
      >>> len(set(xmap(f, ["rows", ...], ["rows", ...])(x).tolist()))
      16
    """
    return jax.random.fold_in(key, lax.axis_index(names)) if names else key


def _over_named_shapes(sampler: Function, shape_at: int) -> Function:
    """The sampler with a `NamedShape` for its shape.

    Args:
      shape_at: the position of the shape among its arguments.
    """

    @functools.wraps(sampler)
    def sample(
        key: AnyValue, *args: PyTree, shape: Unchecked = None, **kwargs: PyTree
    ) -> jax.Array:
        by_position = shape is None and len(args) >= shape_at
        shape = args[shape_at - 1] if by_position else shape
        if not isinstance(shape, NamedShape):
            given = {} if by_position or shape is None else {"shape": shape}
            return sampler(key, *args, **given, **kwargs)
        wrong = [n for n, size in shape.named.items() if lax.axis_size(n) != size]
        if wrong:
            problems = [_wrong_size(n, shape.named[n], lax.axis_size(n)) for n in wrong]
            raise SpecError(f"{sampler.__name__} of `{shape}`", problems)
        # In an order of their own: shapes are equal whatever order they list names in.
        own = fold_in_axes(key, tuple(sorted(shape.named)))
        if by_position:
            args = (*args[: shape_at - 1], shape.dimensions, *args[shape_at:])
        else:
            kwargs["shape"] = shape.dimensions
        return sampler(own, *args, **kwargs)

    return sample


def _wrong_size(name: str, found: int, size: int) -> Problem:
    return Problem(
        f"shape: axis {name!r}",
        f"size {found}",
        f"{size}, the size of the axis",
        f"write named.axis_size({name!r})",
    )


bernoulli = _over_named_shapes(jax.random.bernoulli, 2)
beta = _over_named_shapes(jax.random.beta, 3)
cauchy = _over_named_shapes(jax.random.cauchy, 1)
dirichlet = _over_named_shapes(jax.random.dirichlet, 2)
exponential = _over_named_shapes(jax.random.exponential, 1)
gamma = _over_named_shapes(jax.random.gamma, 2)
gumbel = _over_named_shapes(jax.random.gumbel, 1)
laplace = _over_named_shapes(jax.random.laplace, 1)
logistic = _over_named_shapes(jax.random.logistic, 1)
normal = _over_named_shapes(jax.random.normal, 1)
pareto = _over_named_shapes(jax.random.pareto, 2)
poisson = _over_named_shapes(jax.random.poisson, 2)
rademacher = _over_named_shapes(jax.random.rademacher, 1)
randint = _over_named_shapes(jax.random.randint, 1)
t = _over_named_shapes(jax.random.t, 2)
truncated_normal = _over_named_shapes(jax.random.truncated_normal, 3)
uniform = _over_named_shapes(jax.random.uniform, 1)


_MODES = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("truncated_normal", "normal", "uniform")


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Axis = -2,
    out_axis: Axis = -1,
    batch_axis: Axis = (),
    dtype: DType = None,
) -> Function:
    """An initializer of weights with named axes, as `jax.nn.initializers.variance_scaling`.

    Args:
      scale: The variance of the weights, times the fan.
      mode: "fan_in", "fan_out" or "fan_avg".
      distribution: "normal", "truncated_normal" or "uniform".
      in_axis: The axes of the inputs: a name, a dimension, or a tuple of both. All other axes count
        for both fans, as the window of a convolution does.
      out_axis: The axes of the outputs.
      batch_axis: Axes that count for no fan.
      dtype: Of the weights; by default, that of a Python float.

    Returns:
      A function of a key, a `NamedShape` and a type.

    Raises:
      SpecError: The mode or the distribution is not one of these, or the shape lacks an axis.

    Examples:
      >>> init = named.random.variance_scaling(1.0, "fan_in", "normal", "i", "o")
      >>> sample = lambda: init(jax.random.key(0), named.NamedShape(i=200, o=50))
      >>> weights = xmap(sample, (), ["i", "o"], axis_sizes={"i": 200, "o": 50})()
      >>> round(float(weights.var() * 200), 1)
      1.0
    """
    choices = (("mode", mode, _MODES), ("distribution", distribution, _DISTRIBUTIONS))
    wrong = [_no_choice(*choice) for choice in choices if choice[1] not in choice[2]]
    if wrong:
        raise SpecError(ProgramName("variance_scaling"), wrong)

    def init(key: object, shape: Shape, dtype: DType = dtype) -> jax.Array:
        dtype = jnp.result_type(float) if dtype is None else dtype
        shape = shape if isinstance(shape, NamedShape) else NamedShape(*shape)
        ins, outs, batch = (_product(shape, axis) for axis in (in_axis, out_axis, batch_axis))
        window = _product(shape, (*range(len(shape.dimensions)), *shape.named))
        window /= max(1, ins * outs * batch)
        fan = {"fan_in": ins, "fan_out": outs, "fan_avg": (ins + outs) / 2}[mode] * window
        deviation = math.sqrt(scale / max(1, fan))
        if distribution == "normal":
            return normal(key, shape, dtype) * deviation
        if distribution == "uniform":
            return uniform(key, shape, dtype, -1) * (deviation * math.sqrt(3))
        # That of a normal distribution cut at two standard deviations is smaller.
        return truncated_normal(key, -2, 2, shape, dtype) * (deviation / 0.87962566103423978)

    return init


def _product(shape: NamedShape, axis: Axis) -> float:
    """The product of the sizes of some axes of a shape. Raises SpecError if it lacks one."""
    rank = len(shape.dimensions)
    own = {**dict(enumerate(shape.dimensions)), **shape.named}
    sizes = own | {k - rank: size for k, size in enumerate(shape.dimensions)}
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    missing = [each for each in axes if each not in sizes]
    if missing:
        needed = f"an axis of the shape: {', '.join(map(repr, own)) or 'it has none'}"
        fix = "name axes of the shape, or dimensions"
        problems = [Problem("an axis of a fan", repr(each), needed, fix) for each in missing]
        raise SpecError(f"variance_scaling of `{shape}`", problems)
    return math.prod(sizes[each] for each in axes)


def _no_choice(what: str, found: object, choices: tuple[str, ...]) -> Problem:
    return Problem(what, repr(found), f"one of {', '.join(map(repr, choices))}", "choose one")
