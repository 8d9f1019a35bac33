"""Every kind of bad input to the Python API: who, where, found, needed and fix, word for word.

The rows of MISTAKES and COLLECTIVE_MISTAKES name the row of `docs/errors.md` that they test; its
excerpt must occur in the text that the test expects. Other tests have the name of their row, and
after two underscores what distinguishes tests of one row.
"""

import inspect
import re
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import (
    ArgumentTypeError,
    BodyError,
    ResultTypeError,
    ShmapError,
    SpecError,
    SpecTypeError,
    TargetError,
    TargetTypeError,
    UnknownAxisError,
    UnreducedError,
    shard_map,
    smap,
)
from shmap_compiler.base import jax_compat

ROOT = Path(__file__).parents[2]
HERE = "test/frontend/test_errors.py"
MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = jnp.zeros((8, 16))
ON_I = P("i")
WHOLE = P()


def table_of_errors():
    """The rows of docs/errors.md: name of the kind -> excerpt of the message."""
    lines = (ROOT / "docs" / "errors.md").read_text().splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if "|" in line]
    return {row[0].strip("`"): row[1].strip("`") for row in cells if row[0].startswith("`")}


TABLE = table_of_errors()


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch):
    """Errors name files relative to the working directory."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def refused(request):
    """`with refused(error, fun, (where, found, needed, fix), ...)` expects exactly this error."""
    if "mistake" in request.fixturenames:
        kind = request.getfixturevalue("mistake").kind
    else:
        kind, _, _ = request.function.__name__.removeprefix("test_").partition("__")
    excerpt = TABLE[kind]

    @contextmanager
    def expectation(error, fun, *problems):
        text = (
            f"{text_of(who(fun), problems)}\n  [{error.code}: docs/errors.md#{error.code.lower()}]"
        )
        assert excerpt in text
        with pytest.raises(error, match=re.escape(text)) as raised:
            yield
        assert str(raised.value) == text  # `match` also sees the notes that JAX adds
        assert raised.type is error
        assert isinstance(raised.value, ShmapError)
        assert len(raised.value.problems) == len(problems)

    return expectation


def text_of(who, problems):
    count = "" if len(problems) == 1 else f" ({len(problems)} problems)"
    lines = [f"shard_map of {who}{count}:"]
    for where, found, needed, fix in problems:
        lines += [f"  {where}", f"    found:  {found}"]
        lines += [f"    needed: {needed}", f"    fix:    {fix}"]
    return "\n".join(lines)


def who(fun):
    if not callable(fun):
        return repr(fun)
    return f"`{fun.__name__}` ({HERE}:{fun.__code__.co_firstlineno})"


def place(fun):
    """The line of the last statement of `fun`, as errors name it."""
    lines, first = inspect.getsourcelines(fun)
    return f"{HERE}:{first + len(lines) - 1} ({fun.__qualname__})"


def mapped(fun, in_specs=ON_I, out_specs=ON_I, mesh=MESH, **options):
    return shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def identity(*args):
    return args[0] if len(args) == 1 else args


def compiled(fun, *args, in_specs=ON_I, out_specs=ON_I):
    return mapped(fun, in_specs, out_specs).lower(*args).compile()


# ------------------------------------------------------------------- calls with one mistake in them

A_MESH = "a jax.sharding.Mesh or AbstractMesh"
A_SPEC = "a jax.sharding.PartitionSpec"
MAKE_A_MESH = "make one with jax.make_mesh((4, 2), ('i', 'j'))"
ABSTRACT = AbstractMesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)


@dataclass(frozen=True)
class Mistake:
    """A call of `identity` with one mistake, and the error that it raises.

    Attributes:
      kind: the row of docs/errors.md.
    """

    kind: str
    call: Callable[[], object]
    where: str
    found: str
    needed: str
    fix: str
    error: type[ShmapError] = SpecError


MISTAKES = [
    Mistake(
        "mesh_nowhere",
        lambda: mapped(identity, mesh=None)(X),
        "mesh",
        "none: not given, none in scope, and no argument is placed on one",
        A_MESH,
        "pass mesh=..., or call inside `with jax.set_mesh(mesh):`",
    ),
    Mistake(
        "mesh_other_of_argument",
        lambda: mapped(identity, mesh=ABSTRACT)(
            jax.device_put(X, NamedSharding(jax.make_mesh((8,), ("i",)), P("i")))
        ),
        "mesh",
        "mesh(i=4, j=2) without devices, and an argument on mesh(i=8)",
        "arguments on the devices of one such mesh",
        "place the arguments with jax.device_put(x, NamedSharding(mesh, spec)) on such a mesh",
    ),
    Mistake(
        "mesh_without_axes",
        lambda: mapped(identity, mesh=AbstractMesh((), ()))(X),
        "mesh",
        "a mesh without axes",
        "a mesh of at least one axis",
        MAKE_A_MESH,
    ),
    *(
        Mistake(
            "mesh_no_mesh",
            lambda mesh=mesh: mapped(identity, mesh=mesh)(X),
            "mesh",
            f"a {type(mesh).__name__}",
            A_MESH,
            MAKE_A_MESH,
            SpecTypeError,
        )
        for mesh in (["cpu:0"], (4, 2))
    ),
    *(
        Mistake(
            "axis_names_unknown",
            lambda axis_names=axis_names: mapped(identity, axis_names=axis_names)(X),
            "axis_names={'z'}",
            "axis 'z'",
            "axes of mesh(i=4, j=2)",
            "use some of 'i', 'j'",
        )
        for axis_names in ("z", {"z"}, ["z"])
    ),
    Mistake(
        "spec_axis_unknown",
        lambda: mapped(identity, (P("k", None),))(X),
        "in_specs[0]=P('k', None)",
        "axis 'k'",
        "an axis of mesh(i=4, j=2)",
        "use one of 'i', 'j', or add 'k' to the mesh",
    ),
    *(
        Mistake(
            "spec_axis_repeated",
            lambda spec=spec: mapped(identity, spec)(X),
            f"in_specs={shown}",
            "axis 'i' 2 times",
            "each axis at most once in a spec",
            "keep 'i' at one dimension: its devices can split an array only once",
        )
        for spec, shown in ((P(("i", "i")), "P(('i', 'i'))"), (P("i", "i"), "P('i', 'i')"))
    ),
    Mistake(
        "spec_axis_automatic",
        lambda: mapped(identity, P("j"), axis_names={"i"})(X),
        "in_specs=P('j')",
        "axis 'j', which is not manual here",
        "only manual axes: 'i'",
        "add 'j' to axis_names, or remove it from the spec",
    ),
    *(
        Mistake(
            "spec_no_spec",
            lambda spec=spec: mapped(identity, spec)(X),
            "in_specs",
            found,
            A_SPEC,
            f"write {repair}",
            SpecTypeError,
        )
        for spec, found, repair in (
            ("i", "'i', a str", "P('i')"),
            (
                NamedSharding(MESH, P("i")),
                "NamedSharding...y_kind=device), a NamedSharding",
                "its spec, P('i')",
            ),
            (3, "3, an int", "P('i') or P()"),
        )
    ),
    Mistake(
        "spec_entry_no_axis",
        lambda: mapped(identity, P(3))(X),
        "in_specs=P(3)",
        "the entry 3",
        "for each dimension, None or names of axes of mesh(i=4, j=2)",
        "write None for a dimension that is not split",
    ),
    Mistake(
        "argument_not_divisible",
        lambda: mapped(identity)({"w": jnp.zeros((6, 2))}),
        "args[0]['w'] with in_specs=P('i')",
        "dimension 0 of size 6, shape (6, 2)",
        "a multiple of 4, the size of axis 'i': 4 does not divide 6",
        "pad dimension 0 to 8, or split another dimension",
    ),
    Mistake(
        "argument_not_divisible",
        lambda: mapped(identity, P(None, ("i", "j")))(jnp.zeros((6, 12))),
        "args[0] with in_specs=P(None, ('i', 'j'))",
        "dimension 1 of size 12, shape (6, 12)",
        "a multiple of 4*2 = 8, the size of axes ('i', 'j'): 8 does not divide 12",
        "pad dimension 1 to 16, or split another dimension",
    ),
    Mistake(
        "argument_rank_too_small",
        lambda: mapped(identity, P("i", None, "j"))(X),
        "args[0] with in_specs=P('i', None, 'j')",
        "a spec for 3 dimensions and an array of rank 2, shape (8, 16)",
        "at most 2 entries in the spec",
        "shorten the spec",
    ),
    Mistake(
        "argument_rank_too_small",
        lambda: mapped(identity)(2.5),
        "args[0] with in_specs=P('i')",
        "a spec for 1 dimensions and an array of rank 0, shape ()",
        "at most 0 entries in the spec",
        "shorten the spec, to P()",
    ),
    Mistake(
        "argument_no_array",
        lambda: mapped(identity, (P("i"), P()))(X, {"mode": "fast"}),
        "args[1]['mode']",
        "'fast', a str",
        "an array, a NumPy array or a number",
        "pass an array, or give in_specs[1] the value None to pass it to the function unchanged",
    ),
    Mistake(
        "argument_only_a_type",
        lambda: mapped(identity)(jax.ShapeDtypeStruct((8,), jnp.float32)),
        "args[0]",
        "a ShapeDtypeStruct, f32[8]",
        "an array: a call computes with its values",
        "pass an array; types alone are enough for trace() and lower()",
    ),
    *(
        Mistake(
            "in_specs_other_number",
            lambda args=args: mapped(identity, (P("i"), P("i")))(*args),
            "in_specs against args",
            found,
            needed,
            "give in_specs the structure of args, or one spec for all of it",
        )
        for args, found, needed in (
            ((X,), "a spec in_specs[1] for which there is no args[1]", "1 entries: [0]"),
            ((X, X, X), "no spec for args[2]", "3 entries: [0], [1], [2]"),
        )
    ),
    *(
        Mistake(
            "in_specs_other_kind",
            lambda arg=arg: mapped(identity, ({"w": P()},))(arg),
            "in_specs[0] against args[0]",
            found,
            needed,
            "give in_specs[0] the structure of args[0], or one spec for all of it",
        )
        for arg, found, needed in (
            (X, "a dict of specs for one array", "a single PartitionSpec"),
            (
                (X, X),
                "a dict of specs for a tuple of 2",
                "a tuple of specs, or a single PartitionSpec",
            ),
        )
    ),
    Mistake(
        "smap_axis_too_large",
        lambda: smap(identity, in_axes=10**9, out_axes=0, axis_name="i"),
        "in_axes",
        "1000000000, an int",
        "a dimension below 1000, more than any array has",
        "write 0 to split the first dimension, or None for equal blocks on all devices",
    ),
    Mistake(
        "smap_axis_name_not_one",
        lambda: smap(identity, out_axes=0, axis_name=("i", "j")),
        "axis_name of smap",
        "('i', 'j'), a tuple",
        "the name of one mesh axis",
        "nest smaps, one for each axis, or use shard_map",
        SpecTypeError,
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.kind)
def test_one_mistake(refused, mistake):
    problem = (mistake.where, mistake.found, mistake.needed, mistake.fix)
    with refused(mistake.error, identity, problem):
        mistake.call()


# ------------------------------------------------------------------------------------- the mesh


@pytest.mark.parametrize("is_wide", [False, True])
def test_argument_too_large(refused, is_wide):
    value = 2**70 if is_wide else 2**40
    problem = (
        "args[0]",
        f"{value}, an int",
        f"an integer of at most {64 if is_wide else 32} bits",
        "pass a smaller number" if is_wide else "set jax_enable_x64, or pass a float",
    )
    with jax.enable_x64(is_wide), refused(SpecError, identity, problem):
        mapped(identity, WHOLE, WHOLE)(value)


def test_argument_foreign_type(refused):
    problem = (
        "args[0]",
        "an array of NumPy of type >f4",
        "an element type that JAX has",
        "convert it: x.astype(...)",
    )
    with refused(SpecError, identity, problem):
        mapped(identity)(np.ones((8, 16), ">f4"))


def test_mesh_other_in_scope(refused):
    problem = (
        "mesh",
        "mesh(i=4, j=2)",
        "the mesh in scope here, mesh(i=2, k=4)",
        "omit mesh to use the one in scope, or call outside of its scope",
    )
    with jax.set_mesh(jax.make_mesh((2, 4), ("i", "k"))), refused(SpecError, identity, problem):
        mapped(identity)(X)


@pytest.mark.parametrize("kind", ["devices", "abstract"])
def test_mesh_other_in_scope__with_its_axes_in_another_order(refused, kind):
    scope = jax.make_mesh((2, 4), ("j", "i"), axis_types=(AxisType.Auto,) * 2)
    problem = (
        "mesh",
        "mesh(i=4, j=2)",
        "the mesh in scope here, mesh(j=2, i=4)",
        "omit mesh to use the one in scope, or call outside of its scope",
    )
    mesh = MESH if kind == "devices" else MESH.abstract_mesh
    with jax.set_mesh(scope), refused(SpecError, identity, problem):
        mapped(identity, mesh=mesh)(X)


def test_mesh_other_in_scope__on_other_devices(refused):
    scope = Mesh(MESH.devices[::-1], ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    devices = [", ".join(map(str, m.devices.flat)) for m in (MESH, scope)]
    problem = (
        "mesh",
        f"mesh(i=4, j=2) on {devices[0]}",
        f"the mesh in scope here, on {devices[1]}",
        "omit mesh to use the one in scope, or call outside of its scope",
    )
    with jax.set_mesh(scope), refused(SpecError, identity, problem):
        mapped(identity)(X)


def test_argument_elsewhere(refused):
    half = Mesh(MESH.devices[:2], ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    f = mapped(identity, mesh=half)
    other = jax.device_put(X, MESH.devices[3, 1])
    problem = (
        "args[0]",
        "an array that is committed to cpu:7",
        "an array on cpu:0, cpu:1, cpu:2, cpu:3, the devices of mesh(i=2, j=2), or one that is not "
        "committed to devices",
        "move it with jax.device_put(x, NamedSharding(mesh, spec)), or use a mesh of its devices",
    )
    with refused(SpecError, identity, problem):
        f(other)
    with pytest.raises(ValueError, match="incompatible devices"):
        jax.jit(f)(other)
    np.testing.assert_array_equal(f(jax.device_put(X, NamedSharding(half, P()))), X)


def test_argument_elsewhere__of_a_derivative():
    half = Mesh(MESH.devices[:2], ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    other = jax.device_put(X, NamedSharding(MESH, P()))
    with pytest.raises(SpecError, match=r"spec P\('i'\)\s+found: .* committed to cpu:0, .*, cpu:7"):
        jax.grad(lambda x: mapped(identity, mesh=half)(x).sum())(other)


def test_mesh_too_few_devices(refused):
    """`jax.make_mesh` refuses too large a mesh itself; a Mesh made by hand can repeat devices."""
    mesh = Mesh(np.array([*jax.devices()[:2]] * 2), ("i",))
    problem = (
        "mesh",
        "mesh(i=4) with more than one place for cpu:0, cpu:1",
        "4 different devices",
        "make a smaller mesh: it has 2 different devices",
    )
    with refused(SpecError, identity, problem):
        mapped(identity, mesh=mesh)(X)


# The tests have 8 devices.
SIXTEEN_DEVICES = (
    "; for 16 virtual CPU devices, set XLA_FLAGS=--xla_force_host_platform_device_count=16 before "
    "JAX starts, or call jax.config.update('jax_num_cpu_devices', 16) right after importing it"
)


@pytest.mark.parametrize(
    "mesh", [Mesh(np.array(jax.devices() * 2), "i"), AbstractMesh((16,), ("i",))]
)
def test_mesh_too_few_devices__says_how_to_get_virtual_ones(mesh):
    with pytest.raises((SpecError, TargetError), match="virtual CPU devices") as failure:
        mapped(identity, P(), P(), mesh)(X)
    (problem,) = failure.value.problems
    assert problem.fix.endswith(SIXTEEN_DEVICES)


NO_DEVICES = (
    "mesh",
    "an AbstractMesh, mesh(i=4, j=2), which has no devices",
    "a jax.sharding.Mesh to compile for",
    "use a mesh of devices, e.g. jax.make_mesh(...)",
)


@pytest.mark.parametrize("call", ["jit", "lower"])
def test_mesh_too_many_devices(refused, call):
    problem = (
        "mesh",
        "mesh(i=65536, j=32768) of 2147483648 devices",
        "at most 2147483647 devices, which XLA counts in 32 bits",
        "make an axis smaller",
    )

    def traced(j):
        mesh = AbstractMesh((2**16, j), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
        function = mapped(identity, P("j"), P("j"), mesh)
        trace = {"jit": jax.jit(function).eval_shape, "lower": function.trace}[call]
        return trace(jax.ShapeDtypeStruct((j,), jnp.float32))

    traced(2**15 - 1)
    with refused(SpecError, identity, problem):
        traced(2**15)


@pytest.mark.parametrize("call", ["direct", "jit", "lower"])
def test_mesh_axis_unnamed(refused, call):
    mesh = jax.make_mesh((4, 2), ("", "j"), axis_types=(AxisType.Auto,) * 2)
    problem = (
        "mesh",
        "mesh(=4, j=2), with an axis whose name is empty",
        "a name for each axis: PartitionSpec('') is PartitionSpec(None)",
        "name the axis, e.g. 'i'",
    )
    function = mapped(identity, P("j"), P("j"), mesh)
    with refused(SpecError, identity, problem):
        {"direct": function, "jit": jax.jit(function), "lower": function.lower}[call](X)


NAMES = ["a\\b", 'a"b', "a\nb", "é", "日", "\t", "a b", "@x", "%", "a\\", "\udc80", "it's"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_mesh_axis_unreadable(refused, name):
    """Such a name works, or is refused before XLA sees it, which would end the process."""
    mesh = jax.make_mesh((4, 2), (name, "j"), axis_types=(AxisType.Auto,) * 2)
    function = mapped(lambda x: lax.psum(x, name), P((name, "j")), P("j"), mesh)
    calls = [function, jax.jit(function), lambda x: function.lower(x, partitioner="shardy")]
    if jax_compat.is_readable_name(name):
        for call in calls[1:]:
            result = call(X)
            result = result.compile()(X) if call is calls[2] else result
            np.testing.assert_array_equal(result, np.zeros((2, 16)))
        return
    problem = (
        "mesh",
        f"axis {name!a}",
        "a name that XLA can read: printable ASCII characters, no quotes or backslashes",
        "rename the axis, e.g. to 'i'",
    )
    for call in calls:
        with refused(SpecError, function.fun, problem):
            call(X)


def test_mesh_no_devices(refused):
    with refused(TargetError, identity, NO_DEVICES):
        mapped(identity, mesh=ABSTRACT).lower(X).compile()
    with refused(TargetError, identity, NO_DEVICES):
        mapped(identity, mesh=ABSTRACT)(X)


def test_mesh_no_devices__under_grad(refused):
    def body(x):
        return x

    on_mesh = jax.device_put(X, NamedSharding(MESH, P("i")))
    with pytest.raises(TargetError, match="which has no devices"):
        jax.grad(lambda x: mapped(body, mesh=ABSTRACT)(x).sum())(on_mesh)


# ---------------------------------------------------------------------------- specs by themselves


@pytest.mark.parametrize("spec", [P("i", unreduced={"j"}), P("i", reduced={"j"})])
def test_spec_unreduced_over_auto_axis(refused, spec):
    kind = "unreduced" if spec.unreduced else "reduced"
    problem = (
        f"out_specs=P('i', {kind}={{'j'}})",
        "axis 'j' of type Auto, unreduced or reduced",
        "an axis of type Explicit: only its arrays have types that record pending sums",
        "make the mesh with AxisType.Explicit for 'j', or reduce inside the function",
    )
    with refused(SpecError, identity, problem):
        mapped(identity, out_specs=spec)(X)


@pytest.mark.parametrize(
    ("out_specs", "where"), [(None, "out_specs"), ((P("i"), {"w": None}), "out_specs[1]['w']")]
)
def test_out_spec_none(refused, out_specs, where):
    def nested(x):
        return x if out_specs is None else (x, {"w": x})

    problem = (where, "None, a NoneType", "a jax.sharding.PartitionSpec", "write P('i') or P()")
    with refused(SpecTypeError, nested, problem):
        mapped(nested, P("i"), out_specs)(X)


# ------------------------------------------------------------------------- specs against arguments


EXPLICIT = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)


def on_explicit(spec, shape=(8, 8)):
    return jax.device_put(np.zeros(shape, np.float32), NamedSharding(EXPLICIT, spec))


def test_reference_twice(refused):
    def body(one, other):
        return one[...] + other[...]

    ref = jax.new_ref(jnp.zeros(8))
    problem = (
        "args[1]",
        "the same mutable reference as args[0]",
        "each reference once: a write to one would not be seen through the other",
        "pass it once, or pass its value, ref[...]",
    )
    with refused(SpecError, body, problem):
        mapped(body, (ON_I, ON_I))(ref, ref)


def test_reference_lowered(refused):
    problem = (
        "args[0]",
        "a mutable reference",
        "an array: an executable takes and returns arrays",
        "lower the call with jax.jit(f).lower(...), or pass the value, ref[...]",
    )

    def body(ref):
        return ref[...]

    with refused(SpecError, body, problem):
        mapped(body).lower(jax.new_ref(jnp.zeros(8)))


def test_reference_as_result(refused):
    def body(x):
        return jax.new_ref(x)

    problem = (
        "result",
        "a mutable reference, Ref{float32[2]}",
        "an array",
        "return its value: ref[...], or jax.freeze(ref)",
    )
    with refused(SpecError, body, problem):
        jax.jit(mapped(body))(jnp.zeros(8))


def test_closure_over_enclosing_body(refused):
    def inner(x, y):
        return x * y

    def body(x):
        y = x.sum(0)
        inside = partial(inner, y=y[None, :3])
        return shard_map(
            inside, in_specs=P(None, "j"), out_specs=P(None, "j"), check_vma=False, axis_names={"j"}
        )(x)

    problem = (
        "a value of the enclosing shard_mapped function, which this one closes over",
        "a value of a mesh with other manual axes, which JAX cannot use here",
        "values of this function's own",
        "pass it as an argument, with jax.sharding.PartitionSpec() as its spec",
    )
    with refused(BodyError, inner, problem):
        jax.jit(mapped(body, P("i"), P("i"), axis_names={"i"}))(X)


def test_array_on_explicit_axes(refused):
    with jax.set_mesh(EXPLICIT):
        split = on_explicit(P("j"))

        def body(x):
            return x + split

        problem = (
            f"an array from outside of the function, used at {place(body)}",
            "f32[8@j,8] on axes of type Explicit",
            "an argument; or, in shard_map, an array that is replicated over the manual axes, in a "
            "variable of an enclosing function or of the module",
            "pass it as an argument; in shard_map, you can also replicate it with "
            "jax.sharding.reshard and assign it to a variable first",
        )
        with refused(BodyError, body, problem):
            mapped(body, P(), P(), EXPLICIT)(on_explicit(P()))


def test_reference_used_otherwise(refused):
    def body(x):
        return jax.freeze(jax.new_ref(x, memory_space=jax.memory.Space.Host))

    problem = (
        f"new_ref at {place(body)}",
        "a mutable reference used in a way that shmap_compiler does not know",
        "reads, writes and sums of parts of it, in loops, branches and calls",
        "read the value first, ref[...], and write the result back afterwards",
    )
    with refused(BodyError, body, problem):
        jax.jit(mapped(body))(X)


def test_reference_in_a_rule(refused):
    @jax.custom_vjp
    def noted(y, ref):
        ref[...] = y
        return 2 * y

    noted.defvjp(lambda y, ref: (2 * y, None), lambda _, ct: (ct, None))

    def body(x):
        ref = jax.new_ref(jnp.zeros_like(x))
        return noted(x, ref)

    problem = (
        f"custom_vjp_call at {place(body)}",
        "a function with a derivative rule that takes a mutable reference, and a derivative taken"
        " outside of shard_map",
        "a function of arrays",
        "take the gradient inside shard_map, or pass the reference's value: ref[...]",
    )
    program = jax.jit(mapped(body))
    np.testing.assert_allclose(program(X), 2 * X)
    with refused(BodyError, body, problem):
        jax.grad(lambda x: program(x).sum())(X)


def test_in_specs_not_inferable_over_auto_axes(refused):
    problem = (
        "in_specs",
        "none, over axis 'i', 'j' of type Auto",
        "in_specs, or axes of type Explicit only, which are part of the arguments' types",
        "pass in_specs, a PartitionSpec for each argument",
    )
    with refused(SpecTypeError, identity, problem):
        shard_map(identity, mesh=MESH, out_specs=ON_I)(X)


def test_in_specs_not_inferable_from_type(refused):
    problem = (
        "args[0]",
        "f32[8,8] split as P(('j', 'i'), None)",
        "axes 'i' before others at each dimension",
        "change the split with jax.sharding.reshard, or pass in_specs",
    )
    mapped = shard_map(identity, mesh=EXPLICIT, out_specs=ON_I, axis_names={"i"})
    with refused(SpecError, identity, problem):
        mapped(on_explicit(P(("j", "i"))))


@pytest.mark.parametrize("spec", [P(None, "j"), P(None, ("i", "j"))], ids=str)
def test_in_spec_not_as_typed__over_an_axis_of_size_one(refused, spec):
    """It is part of the type too, and so of that of cotangents."""
    mesh = jax.make_mesh((1, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("i", "j")))
    problem = (
        f"args[0] with in_specs=P{tuple(spec)!r}",
        "f32[8,16] split as P('i', 'j')",
        "the split of the argument's type, over axes of type Explicit",
        "omit in_specs, write the split of the type, or change it with "
        f"jax.sharding.reshard(x, P{tuple(spec)!r})",
    )
    with refused(SpecError, identity, problem):
        jax.jit(mapped(identity, spec, spec, mesh))(x)
    same = mapped(lambda v: v * 2 + lax.psum(v, "i"), P("i", "j"), P("i", "j"), mesh)
    slope = jax.jit(jax.grad(lambda x: jnp.sum(same(x) ** 2)))(x)
    assert slope.sharding.spec == P("i", "j")
    np.testing.assert_array_equal(slope, 18 * X)


@pytest.fixture
def no_axes_of_size_one_in_types():
    name = "jax_remove_size_one_mesh_axis_from_type"
    jax.config.update(name, True)
    yield
    jax.config.update(name, False)


@pytest.mark.usefixtures("no_axes_of_size_one_in_types")
@pytest.mark.parametrize("spec", [P("i", "j"), P(None, ("i", "j")), P(None, "j")], ids=str)
def test_in_spec_as_typed__over_an_axis_of_size_one_that_no_type_names(spec):
    mesh = jax.make_mesh((1, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("i", "j")))
    assert "i" not in str(jax.typeof(x).sharding.spec)
    for function in (jax.shard_map, shard_map):
        same = function(
            lambda v: v * 2 + lax.psum(v, "i"), mesh=mesh, in_specs=spec, out_specs=spec
        )
        np.testing.assert_array_equal(jax.jit(same)(x), 3 * X)
        slope = jax.jit(jax.grad(lambda x, same=same: jnp.sum(same(x) ** 2)))(x)
        assert slope.sharding.spec == P(None, "j")
        np.testing.assert_array_equal(slope, 18 * X)


@pytest.mark.usefixtures("no_axes_of_size_one_in_types")
def test_in_spec_not_as_typed__where_no_type_names_axes_of_size_one():
    mesh = jax.make_mesh((1, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    x = jax.device_put(X, NamedSharding(mesh, P("i", "j")))
    with pytest.raises(SpecError, match="the split of the argument's type"):
        jax.jit(mapped(identity, P("j", "i"), P("j", "i"), mesh))(x)


def test_in_spec_not_as_typed(refused):
    problem = (
        "args[0] with in_specs=P('j')",
        "f32[8,8] split as P('i', None)",
        "the split of the argument's type, over axes of type Explicit",
        "omit in_specs, write the split of the type, or change it with "
        "jax.sharding.reshard(x, P('j'))",
    )
    with refused(SpecError, identity, problem):
        mapped(identity, P("j"), P("j"), EXPLICIT)(on_explicit(P("i")))


def on_explicit_summands(axis="j", split=(), mesh=EXPLICIT):
    spec = P(*split, axis)
    cast = jax.shard_map(
        lambda x: lax.pcast(x, axis, to="unreduced"),
        mesh=mesh,
        in_specs=spec,
        out_specs=P(*split, unreduced={axis}),
    )
    ones = np.ones((8,) * len(spec), np.float32)
    return jax.jit(cast)(jax.device_put(ones, NamedSharding(mesh, spec)))


@pytest.mark.parametrize(("spec", "shown"), [(P(), "P()"), (P(reduced={"j"}), "P(reduced={'j'})")])
def test_in_spec_unreduced_otherwise(refused, spec, shown):
    problem = (
        f"args[0] with in_specs={shown}",
        "f32[4] split as P(None, unreduced={'j'})",
        "the unreduced and reduced axes of the argument's type",
        "omit in_specs, write the axes of the type, or change them with "
        f"jax.sharding.reshard(x, {shown})",
    )
    with refused(SpecError, identity, problem):
        mapped(identity, spec, P(), EXPLICIT)(on_explicit_summands())


def test_argument_unreduced_elsewhere(refused):
    mesh = jax.make_mesh((2, 2, 2), ("i", "j", "k"), axis_types=(AxisType.Explicit,) * 3)
    problem = (
        "args[0]",
        "f32[8,4] split as P('j', None, unreduced={'k'}), "
        "where not all axes of the mesh are manual",
        "all axes manual; from JAX 0.12 on, or that no other axis splits the array",
        "omit axis_names, and do not nest; or reduce the array before",
    )
    with refused(SpecError, identity, problem):
        mapped(identity, P(), P(), mesh, axis_names={"i"})(on_explicit_summands("k", ("j",), mesh))


def test_result_unreduced_otherwise(refused):
    def body(x):
        return lax.pcast(x, "j", to="unreduced")

    problem = (
        "result with out_specs=P('j')",
        "a result f32[4] whose type has P(unreduced={'j'}): out_specs passed to shard_map should "
        "be equal to the unreduced and reduced axes of the result",
        "a result whose type has P(), as out_specs says",
        "reduce it, with jax.lax.psum(result, ('j',)); or name them in the spec",
    )
    with refused(SpecError, body, problem):
        mapped(body, P("j"), P("j"), EXPLICIT)(on_explicit(P("j"), (8,)))


@pytest.mark.parametrize(
    ("said", "shown", "fix"),
    [
        (
            P(unreduced={"j"}),
            "P(unreduced={'j'})",
            "remove them from the spec: all devices hold the same value; or, if result is meant as "
            'a summand, jax.lax.pcast(result, (\'j\',), to="varying"), then to="unreduced"',
        ),
        (
            P(reduced={"j"}),
            "P(reduced={'j'})",
            "jax.lax.pcast(result, ('j',), to=\"reduced\"), or leave them out",
        ),
    ],
)
def test_result_unreduced_otherwise__whole(refused, said, shown, fix):
    problem = (
        f"result with out_specs={shown}",
        "a result f32[8] whose type has P(): out_specs passed to shard_map should be "
        "equal to the unreduced and reduced axes of the result",
        f"a result whose type has {shown}, as out_specs says",
        fix,
    )
    with refused(SpecError, identity, problem):
        mapped(identity, P(), said, EXPLICIT)(on_explicit(P(), (8,)))


def test_operation_on_summands():
    def body(u):
        return u * u

    with pytest.raises(UnreducedError, match="SHM-E207") as raised:
        mapped(body, P(unreduced={"j"}), P(), EXPLICIT)(on_explicit_summands())
    (problem,) = raised.value.problems
    assert problem.where == place(body)
    excerpt = TABLE["operation_on_summands"]
    assert problem.found.startswith(f"{excerpt}: ")
    assert "bilinear" in problem.found  # what JAX says of it
    assert "psum" in problem.fix
    assert isinstance(raised.value, (ValueError, NotImplementedError))


def test_unreduced_results_for_gspmd():
    def body(x):
        return lax.pcast(x, "j", to="unreduced")

    f = mapped(body, P("j"), P(unreduced={"j"}), EXPLICIT)
    with pytest.raises(TargetError, match=TABLE["unreduced_results_for_gspmd"]):
        f.lower(on_explicit(P("j"), (8,)), partitioner="gspmd")


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="XLA accepts them")
@pytest.mark.parametrize("call", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_nested_before_outer(call):
    mesh = jax.make_mesh((2, 2, 2), ("i", "j", "k"), axis_types=(AxisType.Auto,) * 3)

    def body(b):
        spec = P(None, "i")
        return shard_map(jnp.sin, in_specs=spec, out_specs=spec, axis_names={"i"})(b)

    f = shard_map(body, mesh=mesh, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    with pytest.raises(TargetError, match=TABLE["nested_before_outer"]):
        call(f)(x)
    np.testing.assert_allclose(f.lower(x).compile()(x), np.sin(x), rtol=1e-6)


def test_executable_argument_not_unreduced(refused):
    def body(u):
        return lax.psum(u, "j")

    program = (
        mapped(body, P(unreduced={"j"}), P(), EXPLICIT).lower(on_explicit_summands()).compile()
    )
    problem = (
        "args[0]",
        "f32[4] that is not unreduced as the program needs it",
        "an array with the spec P(unreduced={'j'})",
        "reshard it inside jit, or call the shard_mapped function that makes such an array",
    )
    with refused(TargetTypeError, body, problem):
        program(np.zeros(4, np.float32))


def test_smap_axis_no_dimension(refused):
    needed = "a dimension, counted from the first (0), or None"
    fix = "write 0 to split the first dimension, or None for equal blocks on all devices"
    problems = [("in_axes[1]", "-1, an int", needed, fix), ("out_axes", "'i', a str", needed, fix)]
    with refused(SpecError, identity, *problems):
        smap(identity, in_axes=(0, -1), out_axes="i", axis_name="i")


def test_in_specs_other_tree(refused):
    def body(params, x):
        return x

    missing_and_surplus = (
        "in_specs[0]['layer'] against args[0]['layer']",
        "no spec for args[0]['layer']['w']; "
        "a spec in_specs[0]['layer']['v'] for which there is no args[0]['layer']['v']",
        "1 entries: ['w']",
        "give in_specs[0]['layer'] the structure of args[0]['layer'], or one spec for all of it",
    )
    with refused(SpecError, body, missing_and_surplus):
        mapped(body, ({"layer": {"v": P()}}, P()))({"layer": {"w": X}}, X)


# ---------------------------------------------------------------------------- specs against results


def test_out_specs_other_tree(refused):
    def body(x):
        return {"u": x, "v": (x, x)}

    problem = (
        "out_specs['v'] against result['v']",
        "no spec for result['v'][1]",
        "2 entries: [0], [1]",
        "give out_specs['v'] the structure of result['v'], or one spec for all of it",
    )
    with refused(SpecError, body, problem):
        mapped(body, P("i"), {"u": P("i"), "v": (P(),)})(X)


def test_result_rank_too_small(refused):
    def body(x):
        return {"loss": x.sum(), "x": x}

    problem = (
        "result['loss'] with out_specs=P('i')",
        "a result of rank 0, shape (), on each device",
        "rank 1 or more: blocks are put together along 1 dimensions",
        "add dimensions in the function (e.g. x[None, ...]), or shorten the spec",
    )
    with refused(SpecError, body, problem):
        mapped(body)(X)


def test_result_no_array(refused):
    def body(x):
        return x, "done", {"f": len}

    def problem(where, found):
        return (
            where,
            found,
            "an array, or a pytree of arrays",
            "return arrays only; close over other values, or return them outside shard_map",
        )

    name = problem("result[1]", "'done', a str")
    function = problem("result[2]['f']", "<built-in function len>, a builtin_function_or_method")
    with refused(ResultTypeError, body, name, function):
        mapped(body)(X)


def test_function_not_callable(refused):
    problem = (
        "the first argument of shard_map",
        "3, an int",
        "a function of one device's blocks",
        "pass the function itself: shard_map(f, mesh=..., in_specs=..., out_specs=...)",
    )
    with refused(SpecTypeError, 3, problem):
        mapped(3)


FORMER_FORM = (
    "the arguments of shard_map",
    "4 by position, as jax.experimental.shard_map takes them",
    "the function by position, and all others by name",
    "write shard_map(f, mesh=..., in_specs=..., out_specs=...)",
)
FORMER_ARGUMENTS = {
    "check_rep": (False, "write check_vma=False"),
    "auto": ({"j"}, "name the other axes of the mesh: axis_names={'i'}"),
}


def former(name, value, fix):
    found = "an argument of jax.experimental.shard_map"
    return f"{name}={value!r}", found, "arguments of jax.shard_map", fix


def test_arguments_by_position(refused):
    problems = [FORMER_FORM, *(former(k, *v) for k, v in FORMER_ARGUMENTS.items())]
    options = {name: value for name, (value, _) in FORMER_ARGUMENTS.items()}
    with refused(SpecTypeError, identity, *problems):
        shard_map(identity, MESH, P("i"), P("i"), **options)


@pytest.mark.parametrize("name", FORMER_ARGUMENTS)
def test_argument_of_former_form(refused, name):
    value, fix = FORMER_ARGUMENTS[name]
    with refused(SpecTypeError, identity, former(name, value, fix)):
        shard_map(identity, mesh=MESH, in_specs=P("i"), out_specs=P("i"), **{name: value})


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ({"j"}, "name the other axes of the mesh: axis_names={...}"),
        (frozenset(), "omit it"),
        (3, "name the other axes of the mesh: axis_names={...}"),
    ],
)
def test_former_automatic_axes_without_a_mesh(value, fix):
    with pytest.raises(SpecTypeError, match=r"^shard_map:\n") as raised:
        shard_map(in_specs=P("i"), out_specs=P("i"), auto=value)
    assert [problem.fix for problem in raised.value.problems] == [fix]
    with pytest.raises(TypeError, match="check_reps"):
        shard_map(in_specs=P("i"), out_specs=P("i"), check_reps=value)


# ------------------------------------------------------------------------------------- collectives


def unknown(where, known="'i' of size 4, 'j' of size 2", axis="k"):
    return (
        where,
        f"axis '{axis}'",
        f"a manual axis of the mesh: {known}",
        f"use one of these names, or add '{axis}' to the mesh (and to axis_names, if given)",
    )


COLLECTIVES = {
    "psum": lambda x, axis: lax.psum(x, axis),
    "pmean": lambda x, axis: lax.pmean(x, axis),
    "pmax": lambda x, axis: lax.pmax(x, axis),
    "pmin": lambda x, axis: lax.pmin(x, axis),
    "all_gather": lambda x, axis: lax.all_gather(x, axis),
    "psum_scatter": lambda x, axis: lax.psum_scatter(x, axis),
    "all_to_all": lambda x, axis: lax.all_to_all(x, axis, 0, 0),
    "ppermute": lambda x, axis: lax.ppermute(x, axis, [(0, 1)]),
    "pshuffle": lambda x, axis: lax.pshuffle(x, axis, [1, 0]),
    "pbroadcast": lambda x, axis: lax.pbroadcast(x, axis, 0),
    "axis_index": lambda x, axis: lax.axis_index(axis),
    "axis_size": lambda x, axis: lax.axis_size(axis),
    "pcast": lambda x, axis: lax.pcast(x, axis, to="varying"),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective_axis_unknown(refused, name):
    use = COLLECTIVES[name]

    def body(x):
        return use(x, "k")

    where = f"{name} over 'k' at {HERE}:{use.__code__.co_firstlineno} (<lambda>)"
    with refused(UnknownAxisError, body, unknown(where)):
        mapped(body)(X)


def test_collective_axis_unknown__inside_control_flow(refused):
    def step(carry, _):
        return lax.psum(carry, ("i", "k")), None

    def body(x):
        return lax.scan(step, x, length=3)[0]

    with refused(UnknownAxisError, body, unknown(f"psum over 'i', 'k' at {place(step)}")):
        jax.jit(mapped(body))(X)


def test_collective_axis_automatic(refused):
    def body(x):
        return lax.psum(x, "j")

    problem = unknown(f"psum over 'j' at {place(body)}", "'i' of size 4", "j")
    with refused(UnknownAxisError, body, problem):
        mapped(body, axis_names="i").trace(X)


@dataclass(frozen=True)
class CollectiveMistake:
    """A body of one collective with a mistake, and the error that it raises.

    Attributes:
      kind: the row of docs/errors.md.
      name: the collective and its axes, as the error names them.
      shape: that of the argument, which is split as `spec` says.
    """

    kind: str
    use: Callable[[jax.Array], jax.Array]
    name: str
    found: str
    needed: str
    fix: str
    shape: tuple[int, ...] = (8, 16)
    spec: P = ON_I
    error: type[ShmapError] = BodyError


OTHER_DIMENSION = "choose another dimension, or reshape the block"
KEEP_DIMENSION = "pass tiled=True to keep the dimension, or reshape the block"
OF_AXIS = "size 4, the size of axis 'i', because tiled=False removes the dimension"
MODULO = "take indices modulo the axis size, e.g. (i + 1) % 4"
LIST_GROUPS = "list every index of the axis once, or use two mesh axes instead of groups"


NUMBER = ((),)


def of_one_row(sent, received):
    """The offsets and sizes of so many slices."""
    at, ones = jnp.arange(sent, dtype=jnp.int32), jnp.ones(sent, jnp.int32)
    return at, ones, at, jnp.ones(received, jnp.int32)


COLLECTIVE_MISTAKES = [
    CollectiveMistake(
        "collective_axis_repeated",
        lambda x: lax.psum(x, ("i", "i")),
        "psum over 'i', 'i'",
        "axis 'i' 2 times",
        "each axis at most once in a collective",
        "name 'i' once",
    ),
    CollectiveMistake(
        "psum_scatter_not_divisible",
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True),
        "psum_scatter over 'i'",
        "scatter_dimension=1 of size 6, in blocks of shape (2, 6)",
        "a multiple of 4, the size of axis 'i': 4 does not divide 6",
        "pad the dimension to 8, or choose another one",
        (8, 6),
    ),
    CollectiveMistake(
        "psum_scatter_not_divisible",
        lambda x: lax.psum_scatter(x, ("j", "i"), tiled=True),
        "psum_scatter over 'j', 'i'",
        "scatter_dimension=0 of size 12, in blocks of shape (12,)",
        "a multiple of 2*4 = 8, the size of axes ('j', 'i'): 8 does not divide 12",
        "pad the dimension to 16, or choose another one",
        (12,),
        WHOLE,
    ),
    CollectiveMistake(
        "psum_scatter_not_divisible",
        lambda x: lax.psum_scatter(x, "i", axis_index_groups=[[0, 1], [2, 3]], tiled=True),
        "psum_scatter over 'i'",
        "scatter_dimension=0 of size 5, in blocks of shape (5,)",
        "a multiple of 2, the size of the groups: 2 does not divide 5",
        "pad the dimension to 6, or choose another one",
        (5,),
        WHOLE,
    ),
    CollectiveMistake(
        "psum_scatter_untiled",
        lambda x: lax.psum_scatter(x, "i"),
        "psum_scatter over 'i'",
        "scatter_dimension=0 of size 8, in blocks of shape (8,)",
        OF_AXIS,
        KEEP_DIMENSION,
        (8,),
        WHOLE,
    ),
    CollectiveMistake(
        "all_to_all_not_divisible",
        lambda x: lax.all_to_all(x, "i", 1, 0, tiled=True),
        "all_to_all over 'i'",
        "split_axis=1 of size 6, in blocks of shape (2, 6)",
        "a multiple of 4, the size of axis 'i': 4 does not divide 6",
        "pad the dimension to 8, or choose another one",
        (8, 6),
    ),
    CollectiveMistake(
        "all_to_all_untiled",
        lambda x: lax.all_to_all(x, "i", 1, 0),
        "all_to_all over 'i'",
        "split_axis=1 of size 8, in blocks of shape (2, 8)",
        OF_AXIS,
        KEEP_DIMENSION,
        (8, 8),
    ),
    CollectiveMistake(
        "collective_no_such_dimension",
        lambda x: lax.psum_scatter(x, "i", scatter_dimension=2, tiled=True),
        "psum_scatter over 'i'",
        "scatter_dimension=2, on blocks of shape (2, 16)",
        "one of 2 dimensions: scatter_dimension in -2..1",
        OTHER_DIMENSION,
    ),
    CollectiveMistake(
        "collective_no_such_dimension",
        lambda x: lax.all_to_all(x, "i", 3, 0, tiled=True),
        "all_to_all over 'i'",
        "split_axis=3, on blocks of shape (2, 16)",
        "one of 2 dimensions: split_axis in -2..1",
        OTHER_DIMENSION,
    ),
    CollectiveMistake(
        "collective_no_such_dimension",
        lambda x: lax.all_gather(x, "i", axis=5),
        "all_gather over 'i'",
        "axis=5, on blocks of shape (2, 16)",
        "one of 3 dimensions: axis in -3..2",
        OTHER_DIMENSION,
    ),
    CollectiveMistake(
        "ppermute_out_of_range",
        lambda x: lax.ppermute(x, "i", [(0, 4)]),
        "ppermute over 'i'",
        "target 4",
        "each target in 0..3: the axis has 4 devices",
        MODULO,
    ),
    CollectiveMistake(
        "ppermute_out_of_range",
        lambda x: lax.ppermute(x, "i", [(-1, 0)]),
        "ppermute over 'i'",
        "source -1",
        "each source in 0..3: the axis has 4 devices",
        MODULO,
    ),
    CollectiveMistake(
        "ppermute_source_repeated",
        lambda x: lax.ppermute(x, "i", [(0, 1), (0, 2), (3, 0)]),
        "ppermute over 'i'",
        "source 0 more than once, in [(0, 1), (0, 2)]",
        "each device at most once as source",
        "use several ppermutes, or all_gather, to send a block to many devices",
    ),
    CollectiveMistake(
        "ppermute_target_repeated",
        lambda x: lax.ppermute(x, "i", [(0, 1), (2, 1), (3, 0)]),
        "ppermute over 'i'",
        "target 1 more than once, in [(0, 1), (2, 1)]",
        "each device at most once as target",
        "use several ppermutes, or psum, to combine blocks from many devices",
    ),
    CollectiveMistake(
        "pshuffle_no_permutation",
        lambda x: lax.pshuffle(x, "i", [0, 0, 1, 2]),
        "pshuffle over 'i'",
        "perm=[0, 0, 1, 2]",
        "a permutation of 0..3: the axis has 4 devices",
        "name each source once, or use ppermute with (source, target) pairs",
    ),
    CollectiveMistake(
        "pbroadcast_out_of_range",
        lambda x: lax.pbroadcast(x, ("j", "i"), 8),
        "pbroadcast over 'j', 'i'",
        "source 8",
        "a source in 0..7: the axis has 8 devices",
        "take the index modulo the axis size, e.g. i % 8",
    ),
    *(
        CollectiveMistake(
            "groups_no_partition",
            lambda x, groups=groups: lax.psum(x, "i", axis_index_groups=groups),
            "psum over 'i'",
            f"axis_index_groups={groups}",
            "each of 0..3 in exactly one group",
            LIST_GROUPS,
        )
        for groups in ([[0, 1], [1, 2]], [[0, 1]], [[0, 1], [2, 4]])
    ),
    CollectiveMistake(
        "groups_of_unequal_sizes",
        lambda x: lax.all_gather(x, "i", axis_index_groups=[[0, 1, 2], [3]]),
        "all_gather over 'i'",
        "axis_index_groups=[[0, 1, 2], [3]]",
        "each of 0..3 in exactly one group, all groups of one size",
        LIST_GROUPS,
    ),
    CollectiveMistake(
        "collective_over_a_dimension",
        lambda x: x + lax.axis_index(0),
        "axis_index over 0",
        "dimension 0 of the block",
        "names of manual axes of the mesh: 'i', 'j'",
        "write the name of a mesh axis",
    ),
    CollectiveMistake(
        "unordered_numbers",
        lambda x: lax.pmax(x + 1j, "i").real,
        "pmax over 'i'",
        "an operand of complex numbers",
        "numbers with an order",
        "apply pmax to the absolute values, or to real and imaginary parts",
    ),
    CollectiveMistake(
        "unordered_numbers",
        lambda x: lax.pmin(x + 1j, "i").real,
        "pmin over 'i'",
        "an operand of complex numbers",
        "numbers with an order",
        "apply pmin to the absolute values, or to real and imaginary parts",
    ),
    CollectiveMistake(
        "scattered_booleans",
        lambda x: lax.psum_scatter(x > 0, "i", tiled=True, scatter_dimension=1),
        "psum_scatter over 'i'",
        "an operand of type bool",
        "numbers: booleans have no sum",
        "convert first, e.g. x.astype(jnp.int32), as psum does",
    ),
    *(
        CollectiveMistake(
            "slices_not_for_each_device",
            lambda x, slices=(sent, received): lax.ragged_all_to_all(
                x, x, *of_one_row(*slices), axis_name="i"
            ),
            "ragged_all_to_all over 'i'",
            f"input_offsets[{sent}], send_sizes[{sent}], output_offsets[{sent}], "
            f"recv_sizes[{received}]",
            "as many of each, and for each device equally many: a multiple of 4, the size of axis "
            "'i'",
            "give the offsets and sizes of the slices for the first device of the group, then "
            "those for the second, and so on; recv_sizes is what each device sends here",
        )
        for sent, received in ((4, 8), (4, 2), (3, 3))
    ),
    *(
        CollectiveMistake(
            "slices_of_another_kind",
            lambda x, output=output: lax.ragged_all_to_all(
                x[0, 0] if output == NUMBER else x,
                jnp.zeros(*output),
                *of_one_row(4, 4),
                axis_name="i",
            ),
            "ragged_all_to_all over 'i'",
            f"an operand float32{'[]' if output == NUMBER else '[2, 16]'} and an output {found}",
            "rows of one type and shape: slices of the operand are written into the output",
            "convert or reshape one of both",
        )
        for output, found in (
            (((2, 1),), "float32[2, 1]"),
            (((2, 16), jnp.bfloat16), "bfloat16[2, 16]"),
            (NUMBER, "float32[]"),
        )
    ),
    CollectiveMistake(
        "collective_refused_by_jax",
        lambda x: lax.psum({"w": x, "name": "layer"}, "i"),
        "psum over 'i'",
        "Argument 'layer' of type <class 'str'> is not a valid JAX type",
        "arguments that JAX accepts for psum on blocks of shape (2, 16)",
        "see the documentation of jax.lax.psum",
        error=ArgumentTypeError,
    ),
]


def test_pbroadcast_out_of_range__as_an_integer_of_numpy(refused):
    def body(x):
        return lax.pbroadcast(x, ("j", "i"), np.int32(-1))

    line = body.__code__.co_firstlineno + 1
    problem = (
        f"pbroadcast over 'j', 'i' at {HERE}:{line} ({body.__qualname__})",
        "source -1",
        "a source in 0..7: the axis has 8 devices",
        "take the index modulo the axis size, e.g. i % 8",
    )
    with refused(BodyError, body, problem):
        mapped(body, P("i")).trace(X)


@pytest.mark.parametrize("mistake", COLLECTIVE_MISTAKES, ids=lambda mistake: mistake.kind)
@pytest.mark.parametrize("call", ["eager", "trace"])
def test_one_mistake_in_a_collective(refused, mistake, call):
    def body(x):
        return mistake.use(x)

    function = mapped(body, mistake.spec)
    use = mistake.use
    where = f"{mistake.name} at {HERE}:{use.__code__.co_firstlineno} ({use.__qualname__})"
    with refused(mistake.error, body, (where, mistake.found, mistake.needed, mistake.fix)):
        (function if call == "eager" else function.trace)(jnp.zeros(mistake.shape))


@pytest.mark.parametrize("pair", [(0, 4), (1, 9)])
def test_ppermute_out_of_range__inside_control_flow(refused, pair):
    def step(_, x):
        return lax.ppermute(x, "i", [pair])

    def body(x):
        return lax.fori_loop(0, 2, step, x)

    problem = (
        f"ppermute over 'i' at {place(step)}",
        f"target {pair[1]}",
        "each target in 0..3: the axis has 4 devices",
        "take indices modulo the axis size, e.g. (i + 1) % 4",
    )
    with refused(BodyError, body, problem):
        mapped(body)(X)


PAIRS = "a list of (source, target) pairs of integers", "write it as in [(0, 1), (1, 0)]"
GROUPS = "a list of lists of integers", "write it as in [[0, 1], [2, 3]]"


@pytest.mark.parametrize(
    ("name", "argument", "value", "found", "repair"),
    [
        ("ppermute", "perm", [(0.0, 1.0)], "0.0, a float", PAIRS),
        ("ppermute", "perm", [(1, "2")], "'2', a str", PAIRS),
        ("ppermute", "perm", [(0, 1, 2)], "(0, 1, 2), a tuple", PAIRS),
        ("ppermute", "perm", [0, 1], "0, an int", PAIRS),
        ("psum", "axis_index_groups", [[0.0, 1.0], [2.0, 3.0]], "0.0, a float", GROUPS),
        ("psum", "axis_index_groups", [0, 1, 2, 3], "0, an int", GROUPS),
        ("all_gather", "axis_index_groups", ["01", "23"], "'01', a str", GROUPS),
    ],
)
@pytest.mark.parametrize("call", [lambda f: f(X), lambda f: f.trace(X)], ids=["eager", "trace"])
def test_collective_argument_type(name, argument, value, found, repair, call):
    def body(x):
        return getattr(lax, name)(x, "i", **{argument: value})

    problem = (f"{name} over 'i' at {place(body)}", f"{argument} with {found}", *repair)
    text = text_of(body, [problem]).splitlines()[1:]
    with pytest.raises(ArgumentTypeError, match=re.escape("\n".join(text))) as raised:
        call(mapped(body, P("i", "j"), P("i", "j")))
    assert isinstance(raised.value, (TypeError, BodyError))


def test_collective_argument_type__of_a_value_being_traced(refused):
    def body(x):
        return lax.ppermute(x, "i", [(lax.axis_index("i"), 0)])

    problem = (f"ppermute over 'i' at {place(body)}", "perm with a value being traced", *PAIRS)
    with refused(ArgumentTypeError, body, problem):
        mapped(body).trace(X)


def test_collective_argument_type__floats_do_not_stand_for_equal_integers():
    """What was refused leaves no program behind that counts as that of the integers."""
    x = np.arange(8.0, dtype=np.float32)
    for groups in ([[0.0, 1.0], [2.0, 3.0]], [[0, 1], [2, 3]], np.array([[0, 1], [2, 3]])):

        def body(x, groups=groups):
            return lax.psum(x, "i", axis_index_groups=groups)

        if isinstance(groups, list) and isinstance(groups[0][0], float):
            with pytest.raises(TypeError, match=r"0\.0, a float"):
                mapped(body).lower(x)
        else:
            found = mapped(body).lower(x).compile()(x)
            np.testing.assert_array_equal(found, [2, 4, 2, 4, 10, 12, 10, 12])


def test_rule_combines_whole_cotangents():
    @jax.custom_vjp
    def copied(x):
        return x

    def backward(_, ct):
        return (lax.psum(ct, ("i", "j")),)

    def body(x):
        return copied(x)

    copied.defvjp(lambda x: (x, None), backward)
    problem = (
        f"psum over 'i', 'j' at {place(backward)}, in the backward rule of the custom_vjp function"
        f" called at {place(body)}",
        "a cotangent that is equal on all 8 devices along 'i', 'j', as is the result of the"
        " function: a sum over them is 8 times the cotangent",
        "a rule that uses the cotangent of such a result unchanged: the devices' shares are summed"
        " before the rule is called",
        "drop this psum; or make the cotangent a share of each device's own: let the function and"
        " its forward rule return jax.lax.pcast(result, ('i', 'j'), to='varying')",
    )
    with pytest.raises(BodyError, match=TABLE["rule_combines_whole_cotangents"]) as raised:
        jax.grad(lambda x: mapped(body, P(), P())(x).sum())(X)
    assert str(raised.value).startswith(text_of("`body`", [problem]))


# -------------------------------------------------------------------------------------- executables


@pytest.mark.parametrize(
    ("arg", "found"),
    [
        (jnp.zeros((8, 8)), "f32[8,8]"),
        (np.zeros((8, 16), np.int32), "i32[8,16]"),
        ("x", "a str, which is not an array"),
    ],
    ids=["shape", "dtype", "no_array"],
)
def test_executable_other_type(refused, arg, found):
    problem = (
        "args[0]",
        found,
        "f32[8,16], for which this executable was compiled",
        "pass such an array, or lower and compile for the other type",
    )
    executable = compiled(identity, X)
    with refused(TargetTypeError, identity, problem):
        executable(arg)


def test_executable_other_structure(refused):
    problem = (
        "args",
        "the arguments args[0], args[1]",
        "args[0]['b'], args[0]['w'], for which this executable was compiled",
        "call it with the arguments given to lower(), or lower again",
    )
    executable = compiled(identity, {"w": X, "b": X})
    with refused(TargetTypeError, identity, problem):
        executable(X, X)


def test_executable_other_static_argument(refused):
    def body(x, factor):
        return factor * x

    problem = (
        "args[1]",
        "3.0, a float",
        "3, an int, for which this executable was compiled",
        "pass the value given to lower(), or lower and compile for the other one",
    )
    executable = compiled(body, X, 3, in_specs=(P("i"), None))
    with refused(TargetTypeError, body, problem):
        executable(X, 3.0)


def test_executable_under_transformation(refused):
    problem = (
        "args[0]",
        "a value being traced, f32[8,16]",
        "f32[8,16], for which this executable was compiled",
        "call the shard_mapped function itself inside jit, grad and vmap",
    )
    executable = compiled(identity, X)
    with refused(TargetTypeError, identity, problem):
        jax.jit(lambda x: executable(x))(X)


def doubled_by_a_kernel(x):
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@pytest.mark.parametrize(
    ("mesh", "use"),
    [
        (MESH, lambda f: f.compile()),
        (MESH, lambda f: f.compile("cpu:8")),
        (MESH, lambda f: f.as_text("body")),
        (MESH, lambda f: f.simulate(X)),
        (MESH, lambda f: f.overlap_report()),
        (ABSTRACT, lambda f: f.compile("cpu:8")),
        (ABSTRACT, lambda f: f.as_text()),
    ],
    ids=["compile", "target", "body", "simulate", "report", "abstract-target", "abstract-text"],
)
def test_lowering_refused(refused, mesh, use):
    problem = (
        "lowering for 'cpu'",
        "ValueError: Only interpret mode is supported on CPU backend.",
        "a program that JAX can lower for this platform",
        "compile for a target that has its operations, such as 'tpu:v5e:2x4', which need not be "
        "attached, or use others; Pallas kernels run anywhere with interpret=True",
    )
    lowered = mapped(doubled_by_a_kernel, mesh=mesh).lower(X)
    assert "pallas_call" in lowered.as_text("graph")
    assert lowered.portable("tpu").platform == "tpu"
    with refused(TargetError, doubled_by_a_kernel, problem):
        use(lowered)


@pytest.mark.parametrize(
    ("use", "where", "choices", "first"),
    [
        (
            lambda f: f.lower(X, partitioner="xla"),
            "partitioner='xla'",
            "'gspmd', 'shardy'",
            "partitioner='gspmd'",
        ),
        (
            lambda f: f.lower(X, groups="xla"),
            "groups='xla'",
            "'axes', 'one-axis', 'ids'",
            "groups='axes'",
        ),
        (
            lambda f: f.lower(X).as_text("xla"),
            "stage='xla'",
            "'graph', 'body', 'stablehlo', 'hlo'",
            "stage='graph'",
        ),
    ],
    ids=["partitioner", "groups", "stage"],
)
def test_choice_unknown(refused, use, where, choices, first):
    problem = (where, "'xla', a str", f"one of {choices}", f"write {first}")
    with refused(TargetError, identity, problem):
        use(mapped(identity))


# ------------------------------------------------------------------------------------------- vmap


def vmap_refused(kind, fun, *problem, error=SpecError, spec=WHOLE, x=X):
    """`fun` of examples along the first dimension of `x`, which lie along 'i'."""
    text = "\n".join(text_of(identity, [problem]).splitlines()[1:])
    assert kind is None or TABLE[kind] in text
    batched = jax.vmap(mapped(fun, spec, spec), axis_name="b", spmd_axis_name="i")
    with pytest.raises(error, match=re.escape(text)) as raised:
        batched(x)
    assert raised.type is error


BY_VMAP = "an axis with 2 positions on each device, by vmap"


def test_vmap_axis_in_spec():
    vmap_refused(
        "vmap_axis_in_spec",
        identity,
        "vmap with spmd_axis_name=('i',)",
        "axis 'i', which in_specs or out_specs split arrays over already",
        "an axis that no spec of the mapped function mentions",
        "remove 'i' from the specs, or choose another spmd_axis_name",
        spec=P("i"),
    )


def test_vmap_axis_in_collective():
    def body(x):
        return lax.psum(x, "i")

    vmap_refused(
        "vmap_axis_in_collective",
        body,
        "vmap with spmd_axis_name=('i',)",
        "axis 'i', along which collectives of the mapped function communicate",
        "an axis that no collective of the mapped function names: devices along it work on"
        " different examples",
        "remove 'i' from the collectives, or choose another spmd_axis_name",
    )


def test_vmap_not_divisible():
    vmap_refused(
        "vmap_not_divisible",
        identity,
        "vmap with spmd_axis_name=('i',)",
        "6 examples",
        "a multiple of 4, the number of devices along 'i'",
        "pad the examples to 8",
        x=X[:6],
    )


def test_vmapped_groups():
    def body(x):
        return lax.psum(x, "b", axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]])

    vmap_refused(
        "vmapped_groups",
        body,
        f"psum over 'b' at {place(body)}",
        f"axis_index_groups=[[0, 1, 2, 3], [4, 5, 6, 7]] along {BY_VMAP}",
        "groups of whole devices, or a collective over the whole axis",
        "use two axes instead of groups, or place one position on each device",
        error=BodyError,
    )


def test_vmapped_ragged_all_to_all():
    def body(x):
        ones, starts = jnp.ones(8, jnp.int32), jnp.arange(8, dtype=jnp.int32)
        return lax.ragged_all_to_all(x, x, starts, ones, starts, ones, axis_name="b")

    vmap_refused(
        "vmapped_ragged_all_to_all",
        body,
        f"ragged_all_to_all over 'b' at {place(body)}",
        BY_VMAP,
        "an axis with one position on each device: slices go from device to device",
        "place one position on each device, or use all_to_all on padded slices",
        error=BodyError,
    )


@pytest.mark.parametrize(("axes", "size"), [("b", 8), (("j", "b"), 16)])
def test_ppermute_out_of_range__over_a_vmapped_axis(axes, size):
    def body(x):
        return lax.ppermute(x, axes, [(0, size)])

    names = ", ".join(map(repr, (axes,) if isinstance(axes, str) else axes))
    vmap_refused(
        None,
        body,
        f"ppermute over {names} at {place(body)}",
        f"target {size}",
        f"each target in 0..{size - 1}: the axis has {size} devices",
        f"take indices modulo the axis size, e.g. (i + 1) % {size}",
        error=BodyError,
        spec=P("j"),
    )


# ------------------------------------------------------------------------------------ all at once


def test_several_mistakes(refused):
    """Specs by themselves, arguments and out_specs are checked in one go, in this order."""
    unknown_axis = (
        "in_specs[0]=P('k')",
        "axis 'k'",
        "an axis of mesh(i=4, j=2)",
        "use one of 'i', 'j', or add 'k' to the mesh",
    )
    no_spec = ("out_specs", "'j', a str", "a jax.sharding.PartitionSpec", "write P('j')")
    not_divisible = (
        "args[1] with in_specs[1]=P('i')",
        "dimension 0 of size 6, shape (6,)",
        "a multiple of 4, the size of axis 'i': 4 does not divide 6",
        "pad dimension 0 to 8, or split another dimension",
    )
    rank_too_small = (
        "args[2] with in_specs[2]=P('i', 'j')",
        "a spec for 2 dimensions and an array of rank 1, shape (8,)",
        "at most 1 entries in the spec",
        "shorten the spec",
    )
    problems = [unknown_axis, no_spec, not_divisible, rank_too_small]
    with refused(SpecError, identity, *problems):
        mapped(identity, (P("k"), P("i"), P("i", "j")), "j")(X, jnp.zeros(6), jnp.zeros(8))


def test_several_mistakes__in_one_body(refused):
    def body(x):
        x = lax.ppermute(x, "i", [(0, 4), (0, 1)])
        return lax.ppermute(x, "j", [(0, 1), (2, 0)])

    lines, first = inspect.getsourcelines(body)
    assert len(lines) == 3
    on_i = f"ppermute over 'i' at {HERE}:{first + 1} ({body.__qualname__})"
    repeated = (
        on_i,
        "source 0 more than once, in [(0, 4), (0, 1)]",
        "each device at most once as source",
        "use several ppermutes, or all_gather, to send a block to many devices",
    )
    target = (
        on_i,
        "target 4",
        "each target in 0..3: the axis has 4 devices",
        "take indices modulo the axis size, e.g. (i + 1) % 4",
    )
    source = (
        f"ppermute over 'j' at {place(body)}",
        "source 2",
        "each source in 0..1: the axis has 2 devices",
        "take indices modulo the axis size, e.g. (i + 1) % 2",
    )
    with refused(BodyError, body, repeated, target, source):
        mapped(body).trace(X)  # an eager call stops at the first line with a mistake


# ------------------------------------------------------------------ what is not ours stays as it is


class UsersOwnError(Exception):
    pass


def raises_own(x):
    raise UsersOwnError("mine")


def raises_axis_name_error(x):
    raise NameError("axis name of mine")


def raises_in_jax(x):
    return x @ jnp.zeros((3, 3))


@pytest.mark.parametrize("call", ["direct", "jit", "trace", "lower"])
@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (raises_own, UsersOwnError, "^mine"),
        (raises_axis_name_error, NameError, "^axis name of mine"),
        (raises_in_jax, TypeError, "^dot_general requires contracting dimensions"),
        (
            lambda x: lax.scan(lambda c, _: (raises_own(c), None), x, length=2),
            UsersOwnError,
            "^mine",
        ),
    ],
    ids=["own", "name_error", "jax", "in_scan"],
)
def test_errors_of_the_users_function_pass_unchanged(body, kind, message, call):
    function = mapped(body)
    calls = {"direct": function, "jit": jax.jit(function)}
    use = calls.get(call) or getattr(function, call)
    with pytest.raises(kind, match=message) as raised:
        use(X)
    assert raised.type is kind
    assert not isinstance(raised.value, ShmapError)
    assert raised.value.__cause__ is None
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(raised.value.__traceback__)]
    inner = body if body.__name__ != "<lambda>" else raises_own
    assert (__file__, inner.__code__.co_firstlineno + 1) in places


def test_wrong_number_of_arguments_is_pythons_own_error():
    def body(x):
        return x

    with pytest.raises(TypeError, match=r"body\(\) takes 1 positional argument but 2 were given"):
        mapped(body)(X, X)


def test_keyword_arguments_are_refused():
    def body(x, y):
        return x

    with pytest.raises(SpecTypeError, match=r"(?s)`body`.*keyword arguments: y.*by position"):
        mapped(body)(X, y=X)


def test_groups_along_an_axis_of_a_vmap_inside_the_function():
    """JAX refuses them with a NotImplementedError that says nothing of the function."""

    def body(x):
        return jax.vmap(
            lambda row: lax.all_gather(row, "rows", axis_index_groups=[[0], [1]]), axis_name="rows"
        )(x)

    needed = "groups of whole devices, or a collective over the whole axis"
    with pytest.raises(BodyError, match=rf"(?s)all_gather over 'rows'.*{needed}") as raised:
        mapped(body)(X)
    assert raised.type is BodyError


def test_partial_and_callable_objects_are_named():
    def body(scale, x):
        return scale * x

    class Layer:
        def __call__(self, x):
            return x

    line = body.__code__.co_firstlineno
    with pytest.raises(SpecError, match=re.escape(f"shard_map of `body` ({HERE}:{line}):")):
        mapped(partial(body, 2), P("k"))(X)
    line = Layer.__call__.__code__.co_firstlineno
    with pytest.raises(SpecError, match=re.escape(f"shard_map of `Layer` ({HERE}:{line}):")):
        mapped(Layer(), P("k"))(X)


def test_refused_calls_leave_nothing_behind():
    """After a refusal the same function still works, eagerly and compiled."""
    function = mapped(lambda x: lax.psum(x, "i"), P("i"), P())
    with pytest.raises(SpecError, match="4 does not divide 6"):
        function(jnp.zeros(6))
    np.testing.assert_array_equal(function(jnp.ones(4)), [4.0])


def test_every_row_of_the_documentation_has_a_test():
    assert len(TABLE) > 30
    in_tables = {mistake.kind for mistake in (*MISTAKES, *COLLECTIVE_MISTAKES)}
    of_their_own = {name for name in TABLE if f"test_{name}" in globals()}
    assert in_tables | of_their_own == set(TABLE)


@pytest.mark.parametrize("given", [{"in_axes": "i"}, {"axis_name": ("i", "j")}, {}], ids=str)
def test_smap_raises_type_errors_where_jax_does(given):
    """The last: without in_axes, over an axis of type Auto."""
    options = {"out_axes": 0, "axis_name": "i", **given}
    for function in (smap, jax.smap):
        with (
            jax.set_mesh(MESH),
            pytest.raises(TypeError, match=r"in_axes|in_specs|axis_name|axis name"),
        ):
            function(identity, **options)(np.zeros(8))


def test_messages_show_the_first_20_problems():
    with pytest.raises(SpecError, match=r"25 problems") as raised:
        shard_map(lambda *xs: xs, mesh=MESH, in_specs=(P("z"),) * 25, out_specs=P())(*[X] * 25)
    assert len(raised.value.problems) == 25
    *shown, more, code = str(raised.value).split("\n  ")
    assert sum("found:" in part for part in shown) == 20
    assert more == "and 5 more"
    assert code.startswith("[SHM-E101")


def test_mistakes_of_type_beside_others():
    """Only if all are about types, it is a TypeError."""
    with pytest.raises(SpecError, match="2 problems") as raised:
        shard_map(identity, mesh=MESH, in_specs=("i", P("z")), out_specs=P())(X, X)
    assert raised.type is SpecError
    assert len(raised.value.problems) == 2
