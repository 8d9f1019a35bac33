"""What pmap rejects: in words of rows, devices and arguments, and as JAX's kind of error."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import (
    BodyError,
    HangError,
    ReplicationError,
    ResultTypeError,
    ShmapError,
    SpecError,
    SpecTypeError,
    UnknownAxisError,
    pmap,
    shard_map,
)

DEVICES = jax.devices()[:8]
X = np.arange(32.0, dtype=np.float32).reshape(8, 4)
MESH = Mesh(np.array(DEVICES), "i")


def first(x, *rest):
    return x


def split_in_two(x):
    return pmap(lambda y: lax.psum(y, ("i", "j")), "j")(x)


def branches(x):
    return lax.cond(lax.axis_index("i") > 3, lambda x: lax.psum(x, "i"), lambda x: x, x)


# name: (call, error, where, found, needed, fix), each a part of what the message says
REJECTED = {
    "more rows than devices": (
        lambda: pmap(first)(np.ones((9, 2))),
        SpecError,
        "the devices",
        r"9 rows in args\[0\] \(dimension 0 of shape \(9, 2\)\)",
        "at most 8 rows, one for each cpu device here",
        r"pad to 16 rows and put 2 rows on each device: pmap\(jax.vmap\(f\)\)",
    ),
    "more rows than given devices": (
        lambda: pmap(first, devices=DEVICES[:3])({"w": X[:6]}),
        SpecError,
        "the devices",
        r"6 rows in args\[0\]\['w'\]",
        "at most 3 rows, one for each cpu device listed in devices",
        r"put 2 rows on each device.*x.reshape\(3, 2, ...\)",
    ),
    "more rows of inner pmaps than devices": (
        lambda: pmap(split_in_two, "i")(X),
        SpecError,
        "the devices",
        r"8 rows in args\[0\].*, each with inner pmaps of 4 rows: 32 devices in all",
        "at most 8 rows",
        "use jax.vmap for the inner map",
    ),
    "different numbers of rows": (
        lambda: pmap(first)(X, {"w": X[:4], "b": X}),
        SpecError,
        "the number of rows",
        r"8 in args\[0\] \(dimension 0 of shape \(8, 4\)\), args\[1\]\['b'\].*; "
        r"4 in args\[1\]\['w'\]",
        "the same number",
        "equally many rows",
    ),
    "another axis_size": (
        lambda: pmap(first, axis_size=4)(X),
        SpecError,
        "the number of rows",
        r"8 in args\[0\].*; 4 in axis_size=4",
        "as axis_size if it is given",
        "equally many rows",
    ),
    "a keyword argument with other rows": (
        lambda: pmap(lambda x, y: x)(X, y=X[:4]),
        SpecError,
        "the number of rows",
        r"4 in kwargs\['y'\]",
        "the same number",
        "equally many rows",
    ),
    "arrays of no rows": (
        lambda: pmap(first)(X[:0]),
        SpecError,
        "the number of rows",
        r"0 in args\[0\] \(dimension 0 of shape \(0, 4\)\)",
        "at least one row",
        "pass an array with rows",
    ),
    "no rows at all": (
        lambda: pmap(first, in_axes=None)(X),
        SpecError,
        "the arguments",
        "no array with a mapped dimension: in_axes is None for all",
        "at least one.*or axis_size",
        "axis_size=8",
    ),
    "no arguments": (
        lambda: pmap(lambda: 1)(),
        SpecError,
        "the arguments",
        "no array",
        "one",
        "=8",
    ),
    "a scalar": (
        lambda: pmap(first)(X, 3.0),
        SpecError,
        r"args\[1\] with in_axes=0",
        "an array of rank 0, shape ()",
        "an array with a dimension 0",
        "in_axes None for it",
    ),
    "a dimension that is not there": (
        lambda: pmap(first, in_axes=(0, {"w": 2}))(X, {"w": X}),
        SpecError,
        r"args\[1\]\['w'\] with in_axes\[1\]\['w'\]=2",
        r"an array of rank 2, shape \(8, 4\)",
        "a dimension 2",
        "add the dimension",
    ),
    "a scalar by keyword": (
        lambda: pmap(lambda x, y: x)(X, y=3.0),
        SpecError,
        r"kwargs\['y'\] mapped over dimension 0",
        "rank 0",
        "a dimension 0",
        "pass it by position, with in_axes None",
    ),
    "a string": (
        lambda: pmap(first)(X, "adam"),
        SpecTypeError,
        r"args\[1\]",
        "'adam', a str",
        "an array, a NumPy array or a number",
        "static_broadcasted_argnums",
    ),
    "a mutable reference": (
        lambda: pmap(first).trace(X, jax.new_ref(jnp.ones((8, 2)))),
        SpecError,
        r"args\[1\]",
        "a mutable reference",
        "an array",
        "close over the reference",
    ),
    "in_axes with too many entries": (
        lambda: pmap(first, in_axes=((0, 0, 0), 0))((X, X), X),
        SpecError,
        r"in_axes\[0\] against args\[0\]",
        r"a dimension in_axes\[0\]\[2\] for which there is no args\[0\]\[2\]",
        "2 entries",
        "or one dimension for all of it",
    ),
    "in_axes without an entry beside a static argument": (
        lambda: pmap(first, in_axes=(0,), static_broadcasted_argnums=2)(X, X, "name"),
        SpecError,
        "in_axes against args",
        r"no dimension for args\[1\]\n",
        r"2 entries: \[0\], \[1\]",
        "or one dimension for all of it",
    ),
    "in_axes of another structure behind a static argument": (
        lambda: pmap(first, in_axes=(7, 0, {"w": 0}, 7), static_broadcasted_argnums=0)(
            X.shape, X, {"w": X, "b": X}
        ),
        SpecError,
        r"in_axes\[2\] against args\[2\]",
        r"no dimension for args\[2\]\['b'\]",
        "2 entries",
        "or one dimension for all of it",
    ),
    "too many in_axes": (
        lambda: pmap(first, in_axes=(0, 0, None))(X, X),
        SpecError,
        "in_axes against args",
        r"a dimension in_axes\[2\] for which there is no args\[2\]",
        "2 entries",
        "or one dimension for all of it",
    ),
    "in_axes for arguments by keyword": (
        lambda: pmap(lambda x, y: x, in_axes=((0, 0), 0))(x=(X, X), y=X),
        SpecError,
        "in_axes against args",
        "keyword arguments 'x', 'y'",
        "each argument passed by keyword is mapped over dimension 0",
        "pass them by position",
    ),
    "out_axes with too many entries": (
        lambda: pmap(lambda x: ((x, x), x), out_axes=((0, 0, 0), 0))(X),
        SpecError,
        r"out_axes\[0\] against result\[0\]",
        r"a dimension out_axes\[0\]\[2\] for which there is no result\[0\]\[2\]",
        "2 entries",
        "or one dimension for all of it",
    ),
    "rows at a dimension beyond the last": (
        lambda: pmap(lambda x: {"a": x}, out_axes={"a": 3})(X),
        SpecError,
        r"result\['a'\] with out_axes\['a'\]=3",
        r"a result of rank 1, shape \(4,\), for each row",
        "a dimension from -2 to 1",
        "write 0",
    ),
    "a result that is no array": (
        lambda: pmap(lambda x: {"a": "text"})(X),
        ResultTypeError,
        r"result\['a'\]",
        "'text', a str",
        "an array",
        "return arrays only",
    ),
    "one result of rows that differ": (
        lambda: pmap(lambda x: (x, {"a": x * 2}), "i", out_axes=(0, {"a": None}))(X),
        ReplicationError,
        r"result\[1\]\['a'\] with out_axes\[1\]\['a'\]=None",
        r"f32\[4\] that differs from row to row; it began to differ at\s+mul at .*test_pmap_errors",
        "the same value for all rows.*assume_replicated over 'i'",
        r"write 0 in out_axes\[1\]\['a'\].*pmean, psum or all_gather over 'i'",
    ),
    "one result of an argument that differs": (
        lambda: pmap(first, out_axes=None)(X),
        ReplicationError,
        "result with out_axes=None",
        "differs from row to row, as an argument does",
        "the same value for all rows, as only one is returned\n",
        r"the axis, which pmap\(f, axis_name='i'\) names",
    ),
    "an unknown name": (
        lambda: pmap(lambda x: lax.psum(x, "batch"), "i")(X),
        UnknownAxisError,
        "psum over 'batch' at .*test_pmap_errors",
        "axis 'batch'",
        "the name of the rows of a pmap around it: 'i'",
        "use 'i'",
    ),
    "a name where there is none": (
        lambda: pmap(lambda x: lax.psum(x, "batch"))(X),
        UnknownAxisError,
        "psum over 'batch'",
        "axis 'batch'",
        "none has one",
        r"name the rows: pmap\(f, axis_name='i', ...\)",
    ),
    "a static argument that cannot be found again": (
        lambda: pmap(first, static_broadcasted_argnums=1)(X, [1]),
        SpecError,
        r"args\[1\], which static_broadcasted_argnums lists",
        r"\[1\], a list, which is not hashable",
        "a hashable value",
        "remove 1",
    ),
    "a static argument by keyword": (
        lambda: pmap(lambda x, n=1: x, static_broadcasted_argnums=1)(X),
        SpecError,
        r"static_broadcasted_argnums=\(1,\)",
        "a call with 1 positional arguments",
        "passed by position",
        "pass argument 1 by position",
    ),
    "static arguments that do not exist": (
        lambda: pmap(lambda x: x, static_broadcasted_argnums=3),
        SpecError,
        "static_broadcasted_argnums",
        "3",
        "positions of arguments that the function takes",
        "count positions from 0",
    ),
    "static and donated": (
        lambda: pmap(first, static_broadcasted_argnums=1, donate_argnums=(0, 1)),
        SpecError,
        "donate_argnums",
        "1, which static_broadcasted_argnums lists",
        "positions of arrays",
        "remove 1",
    ),
    "no devices": (
        lambda: pmap(first, devices=[]),
        SpecError,
        "devices",
        "an empty sequence",
        "one device or more, or None",
        "omit devices",
    ),
    "a device twice": (
        lambda: pmap(first, devices=[*DEVICES[:2], DEVICES[0]]),
        SpecError,
        "devices",
        "2 times",
        "different devices",
        "each device once",
    ),
    "devices that are none": (
        lambda: pmap(first, devices=[0, 1]),
        SpecTypeError,
        "devices",
        "0, an int",
        "each a jax.Device",
        "jax.devices()",
    ),
    "in_axes of other types": (
        lambda: pmap(first, in_axes=("a", {"w": True})),
        SpecTypeError,
        r"in_axes\[0\]",
        "'a', a str",
        "a dimension, or None",
        "write 0",
    ),
    "out_axes of other types": (
        lambda: pmap(first, out_axes=1.0),
        SpecTypeError,
        "out_axes",
        "1.0, a float",
        "a dimension, or None",
        "write 0",
    ),
    "a name that is no string": (
        lambda: pmap(first, 3),
        SpecTypeError,
        "axis_name",
        "3, an int",
        "a string",
        "write axis_name='i'",
    ),
    "positions of another type": (
        lambda: pmap(first, donate_argnums="x"),
        SpecTypeError,
        "donate_argnums",
        r"\('x',\)",
        "a position",
        "donate_argnums=0",
    ),
    "an axis_size of another type": (
        lambda: pmap(first, axis_size="8"),
        SpecTypeError,
        "axis_size",
        "'8', a str",
        "a number of rows",
        "omit it",
    ),
    "no function": (
        lambda: pmap(3),
        SpecTypeError,
        "the first argument of pmap",
        "3, an int",
        "a function of one row",
        "pass the function itself",
    ),
    "devices of an inner pmap": (
        lambda: pmap(pmap(first, "j", devices=DEVICES), "i")(X[:2]),
        SpecError,
        "devices of an inner pmap",
        "a list of devices",
        "the outermost pmap chooses",
        "pass devices to the outermost pmap",
    ),
    "an inner pmap of the same name": (
        lambda: pmap(pmap(first, "i"), "i")(X[:2]),
        SpecError,
        "axis_name of an inner pmap",
        "'i', as of an enclosing one",
        "a name for the rows of each pmap",
        "another axis_name",
    ),
    "inner pmaps of one name and two sizes": (
        lambda: pmap(lambda x: (split_in_two(x[:2]), split_in_two(x)), "i")(X[:2]),
        SpecError,
        "axis_name='j' of an inner pmap",
        "4 rows, where another pmap or the mesh has 2",
        "the same number",
        "another axis_name",
    ),
    "pmap in a shard_map without a free axis": (
        lambda: shard_map(pmap(first), mesh=MESH, in_specs=P("i"), out_specs=P("i")).trace(X),
        SpecError,
        "pmap inside a shard_map",
        "a number of rows, 1, for which the mesh has no axis",
        "an axis of this mesh that is not manual: there is none",
        "use jax.vmap",
    ),
    "a collective that some rows do not reach": (
        lambda: pmap(branches, "i").lower(X),
        HangError,
        "psum",
        "whose predicate varies",
        "all devices along 'i'",
        "check_hangs=False allows it",
    ),
    "a permutation that is none": (
        lambda: pmap(lambda x: lax.pshuffle(x, "i", [1, *range(1, 8)]), "i")(X),
        BodyError,
        "pshuffle over 'i'",
        r"perm=\[1, 1, 2",
        "a permutation of 0..7",
        "name each source once",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_rejected(case):
    call, kind, *parts = REJECTED[case]
    with pytest.raises(kind, match=r"^pmap of ") as raised:
        call()
    assert type(raised.value) is kind
    shown = "\n".join(map(str, raised.value.problems)) + "\n"
    where, found, needed, fix = parts
    pattern = f"{where}.*found: .*{found}.*needed: .*{needed}.*fix: .*{fix}"
    assert re.search(pattern, shown, re.DOTALL), shown
    assert "pmap_rows" not in str(raised.value)
    assert "in_specs" not in str(raised.value)


def test_all_mistakes_are_shown_at_once():
    with pytest.raises(SpecError, match="2 problems") as raised:
        pmap(first, in_axes=(0, 3, 0))(X, X, "text")
    assert [p.where for p in raised.value.problems] == ["args[1] with in_axes[1]=3", "args[2]"]


@pytest.mark.parametrize("stage", ["__call__", "lower", "eval_shape", "trace"])
def test_every_stage_rejects(stage):
    with pytest.raises(SpecError, match="4 in args"):
        getattr(pmap(first), stage)(X, X[:4])
    with pytest.raises(SpecTypeError, match="'text', a str"):
        getattr(pmap(first), stage)(X, "text")


AS_JAX = {
    "rows": lambda pmap: pmap(first)(np.ones((9, 2))),
    "sizes": lambda pmap: pmap(first)(X, X[:4]),
    "axis_size": lambda pmap: pmap(first, axis_size=4)(X),
    "nothing mapped": lambda pmap: pmap(first, in_axes=None)(X),
    "in_axes": lambda pmap: pmap(first, in_axes=((0, 0, 0), 0))((X, X), X),
    "out_axes": lambda pmap: pmap(first, out_axes=(0, 0))(X),
    "types of in_axes": lambda pmap: pmap(first, in_axes="a"),
    "a string": lambda pmap: pmap(first)(X, "text"),
    "a result": lambda pmap: pmap(lambda x: "text")(X),
    "name": lambda pmap: pmap(lambda x: lax.psum(x, "j"), "i")(X),
    "static": lambda pmap: pmap(first, static_broadcasted_argnums=1)(X, [1]),
    "static, missing": lambda pmap: pmap(first, static_broadcasted_argnums=1)(X),
    "devices": lambda pmap: pmap(first, devices=[])(X),
    "function": lambda pmap: pmap(3),
    "permutation": lambda pmap: pmap(lambda x: lax.pshuffle(x, "i", [1] * 8), "i")(X),
}


@pytest.mark.parametrize("case", AS_JAX)
def test_errors_are_of_the_types_of_jax(case):
    with pytest.raises((TypeError, ValueError, NameError), match=r".") as theirs:
        AS_JAX[case](jax.pmap)
    expected = next(t for t in (NameError, TypeError, ValueError) if isinstance(theirs.value, t))
    with pytest.raises(expected, match=r"found: ") as ours:
        AS_JAX[case](pmap)
    assert isinstance(ours.value, ShmapError)


def test_errors_of_the_function_are_its_own():
    calls = []

    def fails(x):
        calls.append(x)
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine"):
        pmap(fails)(X)
    assert len(calls) == 1
    with pytest.raises(KeyError, match="1"), jax.disable_jit():
        pmap(lambda x: {}[1])(X)


def test_errors_of_a_shard_map_inside_are_its_own():
    inner = shard_map(first, in_specs=P("k"), out_specs=P(), axis_names="j")
    mesh = Mesh(np.array(DEVICES).reshape(4, 2), ("i", "j"))
    outer = shard_map(inner, mesh=mesh, in_specs=P("i"), out_specs=P("i"), axis_names="i")
    with pytest.raises(SpecError, match=r"^shard_map of `first`"):
        outer.trace(X)
    with pytest.raises(SpecError, match=r"^shard_map of `first`"):
        pmap(lambda x: (pmap(jnp.sin, "j")(x), inner(x))[0], "i")(X[:4, :2])


def test_a_call_works_after_one_that_failed():
    f = pmap(functools.partial(first), "i")
    with pytest.raises(SpecError, match="the number of rows"):
        f(X, X[:4])
    np.testing.assert_array_equal(f(X, X), X)
