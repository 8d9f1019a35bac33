"""What NumPy computes of large arrays is what the interpreter computes, bit for bit.

Sums and products of floats are computed more exactly.
"""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir
from shmap_passes import make_context

from shmap_compiler import simulate_module
from shmap_compiler.simulate import by_numpy, compile, device
from shmap_compiler.simulate.agreement import default_tolerance, distances, has_same_bits
from shmap_compiler.simulate.arithmetic import rounded
from shmap_compiler.simulate.element_types import ELEMENT_TYPES
from shmap_compiler.simulate.elementwise import ELEMENTWISE
from shmap_compiler.simulate.simulate_module import playable

FLOATS = ("bf16", "f16", "f32")
WHOLE = ("i8", "ui8", "i32", "ui32", "i64")
TYPES = (*FLOATS, *WHOLE, "i1")
EDGES = (0.0, -0.0, 1.0, -1.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, 3e38, 65504, 128, -129, 2.0**32)

UNARY = "negate abs sign ceil floor round_nearest_even sqrt rsqrt cbrt exponential "
UNARY += "exponential_minus_one log log_plus_one logistic sine cosine tan tanh"
BINARY = "add subtract multiply divide remainder power atan2 maximum minimum"
OF_WHOLE = "add subtract multiply maximum minimum and or xor shift_left shift_right_logical "
OF_WHOLE += "shift_right_arithmetic"
OF_BOOLEANS = "add multiply maximum minimum and or xor"
SAME_BITS = {"bf16": "ui16", "f16": "i16", "f32": "ui32", "i32": "f32", "ui8": "i8"}


def numbers(name, shape, seed):
    rng, dtype = np.random.default_rng(seed), ELEMENT_TYPES[name].dtype
    if name == "i1":
        return rng.random(shape) < 0.5
    with np.errstate(all="ignore"):
        if name in WHOLE:
            wide = rng.integers(-(2**63), 2**63 - 1, shape)
            return np.where(rng.random(shape) < 0.5, wide, rng.integers(-9, 9, shape)).astype(dtype)
        plain = rng.standard_normal(shape) * np.exp(3 * rng.standard_normal(shape))
        return np.where(rng.random(shape) < 0.2, rng.choice(EDGES, shape), plain).astype(dtype)


def line(number, operands, op, types, result, extra):
    arguments = ", ".join(f"%{k}" for k in operands)
    before = ", ".join(f"tensor<40x{t}>" for t in types)
    return f'%r{number} = "stablehlo.{op}"({arguments}) {extra}: ({before}) -> tensor<40x{result}>'


def elementwise_ops(name):
    """Lines of a module with arguments of a type, of the type again and of booleans."""
    of_type = {"i1": (OF_BOOLEANS, "not"), **dict.fromkeys(FLOATS, (BINARY, UNARY))}
    binary, unary = of_type.get(name, (OF_WHOLE, "negate sign abs not"))
    lines = [("xy", op, [name] * 2, name, "") for op in binary.split()]
    lines += [
        ("x", op, [name], name, "")
        for op in unary.split()
        if not (name.startswith("u") and op in ("abs", "sign"))
    ]
    others = [t for t in (*FLOATS, "f64", *WHOLE, "i1") if t != name]
    lines += [("x", "convert", [name], other, "") for other in others]
    lines += [("pxy", "select", ["i1", name, name], name, "")]
    if name == "i1":
        return lines
    for way in ("EQ", "NE", "LT", "LE", "GT", "GE"):
        way = f"{{comparison_direction = #stablehlo<comparison_direction {way}>}} "
        lines.append(("xy", "compare", [name] * 2, "i1", way))
    lines.append(("xyx", "clamp", [name] * 3, name, ""))
    lines.append(("", "iota", [], name, "{iota_dimension = 0}"))
    if name in FLOATS:
        lines.append(("x", "is_finite", [name], "i1", ""))
    if name in SAME_BITS:
        lines.append(("x", "bitcast_convert", [name], SAME_BITS[name], ""))
    return lines


def played(monkeypatch, text, args):
    """The results by NumPy, and those of the interpreter."""
    monkeypatch.setattr(by_numpy, "LARGE", 0)
    monkeypatch.setattr(device, "_evaluate", None)  # fails if the interpreter is asked
    ours = simulate_module(text, args).arrays
    monkeypatch.undo()
    monkeypatch.setattr(compile, "function_of", lambda op: None)
    monkeypatch.setattr(compile, "_ALWAYS_PLAYED", frozenset())
    theirs = simulate_module(text, args).arrays
    monkeypatch.undo()
    return ours, theirs


@pytest.mark.parametrize("name", TYPES)
def test_elements(monkeypatch, name):
    ops = elementwise_ops(name)
    # NumPy rounds some 64-bit integers twice: the interpreter converts them.
    ops = [op for op in ops if not (op[1] == "convert" and "i64" in (name, op[3]) and is_float(op))]
    lines = [line(number, *op) for number, op in enumerate(ops)]
    results = ", ".join(f"%r{k}" for k in range(len(ops)))
    types = ", ".join(f"tensor<40x{op[3]}>" for op in ops)
    text = "\n".join(
        [
            f"func.func @main(%x: tensor<40x{name}>, %y: tensor<40x{name}>, %p: tensor<40xi1>)",
            f"-> ({types}) {{",
            *lines,
            f"return {results} : {types} }}",
        ]
    )
    args = numbers(name, 40, 0), numbers(name, 40, 1), numbers("i1", 40, 2)
    for op, ours, theirs in zip(ops, *played(monkeypatch, text, args), strict=True):
        assert has_same_bits(ours, theirs), (op, ours, theirs)


def is_float(op):
    return any(t in (*FLOATS, "f64") for t in (*op[2], op[3]))


def test_all_ops_on_elements_are_tested():
    tested = {f"stablehlo.{op[1]}" for name in TYPES for op in elementwise_ops(name)}
    assert tested == set(ELEMENTWISE)


def test_functions_of_doubles_are_left_to_the_interpreter():
    text = """func.func @main(%x: tensor<9000xf64>) -> tensor<9000xf64> {
        %0 = stablehlo.tanh %x : tensor<9000xf64>
        %1 = stablehlo.add %0, %x : tensor<9000xf64>
        return %1 : tensor<9000xf64> }"""
    with make_context():
        module = ir.Module.parse(text)
        tanh, add, _ = [op.operation for op in module.body.operations[0].regions[0].blocks[0]]
        assert by_numpy.function_of(tanh) is None
        assert by_numpy.function_of(add) is not None


def test_doubles_are_rounded_once():
    """By way of a single, the first becomes halfway between two bfloat16, of which 1 is even."""
    beside = np.array([1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8 - 2**-40, np.nan, -np.inf])
    expected = np.array([1 + 2**-7, 1, 1 + 2**-7, np.nan, -np.inf])
    found = rounded(beside, np.dtype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize("name", ["bf16", "f32", "i32", "i1"])
@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
def test_reductions(monkeypatch, name, op):
    x, start = numbers(name, (6, 5, 7), 0), numbers(name, (), 1)
    region = f"""({{ ^bb0(%a: tensor<{name}>, %b: tensor<{name}>):
        %c = stablehlo.{op} %a, %b : tensor<{name}>
        stablehlo.return %c : tensor<{name}> }})"""
    whole, one = f"tensor<6x5x7x{name}>", f"tensor<{name}>"
    results = f"tensor<5x{name}>, tensor<{name}>, tensor<7x6x7x{name}>"
    text = f"""func.func @main(%x: {whole}, %s: {one}) -> ({results}) {{
        %0 = "stablehlo.reduce"(%x, %s) {region} {{dimensions = array<i64: 2, 0>}}
            : ({whole}, {one}) -> tensor<5x{name}>
        %1 = "stablehlo.reduce"(%x, %s) {region} {{dimensions = array<i64: 0, 1, 2>}}
            : ({whole}, {one}) -> {one}
        %2 = "stablehlo.reduce_window"(%x, %s) {region} {{
            window_dimensions = array<i64: 3, 2, 1>, window_strides = array<i64: 2, 1, 1>,
            base_dilations = array<i64: 3, 1, 1>, window_dilations = array<i64: 1, 2, 1>,
            padding = dense<[[1, -1], [1, 2], [0, 0]]> : tensor<3x2xi64>
        }} : ({whole}, {one}) -> tensor<7x6x7x{name}>
        return %0, %1, %2 : {results} }}"""
    if name not in FLOATS or op not in ("add", "multiply"):
        for ours, theirs in zip(*played(monkeypatch, text, (x, start)), strict=True):
            assert has_same_bits(ours, theirs)
        return
    # The interpreter rounds each addition: it shall add doubles.
    x = np.random.default_rng(0).uniform(0.9, 1.1, x.shape).astype(x.dtype)
    start = np.ones((), x.dtype)
    ours, _ = played(monkeypatch, text, (x, start))
    wide = x.astype(np.float64), start.astype(np.float64)
    _, exact = played(monkeypatch, text.replace(name, "f64"), wide)
    for found, expected in zip(ours, exact, strict=True):
        assert found.dtype == x.dtype
        assert distances(found, expected)[1] <= jnp.finfo(x.dtype).eps * (9 if name == "f32" else 1)


@pytest.mark.parametrize("count", [1000, 70000])
@pytest.mark.parametrize("name", ["bf16", "f16", "f8E5M2", "f32", "f64", "complex<f32>"])
def test_sums_of_many_numbers(name, count):
    """Added one after the other, they stand still at some power of two, or drift away."""
    dtype = ELEMENT_TYPES[name].dtype
    x, zero = np.full((count, 2), 0.3, dtype), np.zeros((), dtype)
    text = jax.jit(lambda x: lax.reduce(x, zero, lax.add, (0,))).lower(x).as_text()
    (found,) = simulate_module(text, [x]).arrays
    expected = x[0].astype(complex) * count
    assert distances(found, expected)[1] <= jnp.finfo(dtype).eps


@pytest.mark.parametrize("name", ["bf16", "f8E4M3FN", "f32"])
def test_sums_in_windows_of_many_numbers(name):
    dtype = ELEMENT_TYPES[name].dtype
    x, zero = np.full(600, 0.3, dtype), np.zeros((), dtype)

    def sums(x):
        return lax.reduce_window(x, zero, lax.add, (600,), (1,), ((599, 0),))

    (found,) = simulate_module(jax.jit(sums).lower(x).as_text(), [x]).arrays
    expected = np.arange(1, 601) * x[0].astype(np.float64)
    assert distances(found, expected)[1] <= jnp.finfo(dtype).eps


@pytest.mark.parametrize("low", [-2, 2])
@pytest.mark.parametrize("interior", [0, 2])
def test_padding_and_reversal(monkeypatch, low, interior):
    def f(x, value):
        return lax.pad(x, value, [(low, 1, interior), (1, -low, 0)]), lax.rev(x, (1,))

    args = numbers("bf16", (4, 6), 0), numbers("bf16", (), 1)
    for ours, theirs in zip(
        *played(monkeypatch, jax.jit(f).lower(*args).as_text(), args), strict=True
    ):
        assert has_same_bits(ours, theirs)


@pytest.mark.parametrize(
    ("numbers_of", "sizes", "kernel", "groups", "flags"),
    [
        (("NHWC", "HWIO", "NHWC"), (2, 6, 5, 3), (3, 2, 3, 4), (1, 1), "false, true"),
        (("CNWH", "OWIH", "HNCW"), (6, 2, 4, 5), (4, 2, 3, 3), (2, 1), "true, false"),
        (("NCHW", "IOHW", "CHWN"), (4, 3, 5, 6), (3, 4, 2, 2), (1, 2), "false, false"),
    ],
)
def test_convolutions(monkeypatch, numbers_of, sizes, kernel, groups, flags):
    def f(x, w):
        dims = lax.conv_dimension_numbers(sizes, kernel, numbers_of)
        options = [(2, 1), [(1, 2), (-1, 1)], (1, 2), (2, 1), dims, *groups]
        return lax.conv_general_dilated(x, w, *options)

    rng = np.random.default_rng(0)
    args = [rng.standard_normal(n).astype(np.float32) for n in (sizes, kernel)]
    lowered = re.sub(r"(, )?reverse = \[[^\]]*\]", "", jax.jit(f).lower(*args).as_text())
    text, count = re.subn(r"window = {", f"window = {{reverse = [{flags}], ", lowered)
    assert count == 1
    (ours,), (theirs,) = played(monkeypatch, text, args)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert distances(ours, theirs)[1] <= default_tolerance(ours.dtype) / 16


def test_values_are_dropped_after_their_last_use():
    """Also those that a loop reads in each of its rounds."""

    def f(x):
        y = x * 2
        return lax.fori_loop(0, 3, lambda _, z: z + y, jnp.zeros_like(x)) + 1

    text = jax.jit(f).lower(np.arange(5000.0, dtype=np.float32)).as_text()
    block = playable(text, None, "a test").entry
    results = {number for step in block.steps for number in step.results}
    dropped = [number for numbers in block.dropped for number in numbers]
    assert sorted(dropped) == sorted({*results, *block.arguments} - set(block.results))
    (found,) = simulate_module(text, [np.arange(5000, dtype=np.float32)]).arrays
    np.testing.assert_array_equal(found, np.arange(5000) * 6 + 1)
