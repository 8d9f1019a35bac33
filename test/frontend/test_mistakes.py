"""Mistakes in the arguments of the API and of shmap-opt: each ends in an error of ours, at once.

The messages are tested in test_errors.py, test_artifacts_broken.py and cli/; here it is that
nothing raw comes out: no AttributeError, no error of MLIR's bindings, no death.
"""

import contextlib
import io
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from shmap_tools.opt import main as shmap_opt

from shmap_compiler import ShmapError, Target, assume_replicated, load, shard_map, smap

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.zeros((8, 16), np.float32)
LONG = "9" * 5000
THING = object()
ON_I = P("i")


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def identity(*args):
    return args[0] if len(args) == 1 else args


def mapped(fun=identity, in_specs=ON_I, out_specs=ON_I, mesh=MESH, **options):
    return shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    lowered = mapped().lower(X)
    lowered.save(tmp_path_factory.mktemp("saved") / "f")
    folder = tmp_path_factory.getbasetemp()
    portable = load(next(folder.glob("saved*/f")))
    return {"lowered": lowered, "executable": lowered.compile(), "portable": portable}


def in_mesh(make):
    with jax.set_mesh(MESH):
        return make()


TARGETS = (
    *(
        5,
        1.5,
        b"cpu",
        [],
        (),
        {},
        THING,
        True,
        "",
        "xyz",
        "cpu",
        "cpu:",
        "cpu:0",
        "cpu:-1",
        "cpu:x",
    ),
    *("cpu:8:8", f"cpu:{LONG}", "tpu", "tpu:v5e", "tpu:v5e:0x4", f"tpu:v5e:{LONG}", "gpu:h100"),
    *("gpu:h100:-1", "gpu:h100:0x0", f"gpu:h100:{LONG}", "local:5"),
)
CHOICES = (5, None, [], "x", True, {}, THING)
PATHS = (5, None, [], b"f", "a\0b", "", THING)
AXES = (
    3,
    1.5,
    None,
    "z",
    ["z"],
    [1],
    [None],
    [[]],
    {"i": 1, "z": 1},
    THING,
    {"i", "z"},
    b"i",
    True,
)
MESHES = (5, "i", [], (), (4, 2), jax.devices(), np.array(jax.devices()), object, True)
SPECS = (
    *(5, "i", True, THING, P(5), P(("i", 5)), P("z"), P(None, None, None, "i"), {"a": P()}),
    *([P(), P()], (P(), P()), NamedSharding(MESH, P("i")), jnp.ones(3), identity, [], (), {}),
)
TYPES = (
    *(struct(10**30), struct(-4), struct(2**62, 4), struct(8, -16), struct(2**40, 2**40)),
    *(struct(8.0), struct(2**63, dtype=jnp.int8)),
)
VALUES = (
    *("x", THING, [1, 2], {"a": 1}, identity, b"x", np.array(["a"]), np.array([THING])),
    *(X[:3], X[0, 0], np.zeros(()), 5, 1.5, True, 1j, 10**30, -(10**30), jnp.float32, range(8)),
    *(np.zeros((8,), [("a", "f4")]), {1, 2}, np.zeros((8, 2), "M8[s]"), struct(8, 16), struct(3)),
)
RESULTS = ("s", identity, THING, [1, "s"], jnp.float32, {1, 2}, b"x", struct(2, 16), 5)
DIMENSIONS = (-1, 1.5, "0", [0, 1], {"a": 0}, True, THING, P("i"), 2)

RUNS = {
    "Target.parse": (TARGETS, lambda v, made: Target.parse(v)),
    "Lowered.compile": (TARGETS, lambda v, made: made["lowered"].compile(v)),
    "Portable.compile": ((None, *TARGETS), lambda v, made: made["portable"].compile(v)),
    "as_text": (CHOICES, lambda v, made: made["lowered"].as_text(v)),
    "partitioner": (
        [each for each in CHOICES if each is not None],
        lambda v, made: mapped().lower(X, partitioner=v),
    ),
    "groups": (CHOICES, lambda v, made: mapped().lower(X, groups=v)),
    "platform": (CHOICES, lambda v, made: made["lowered"].portable(v)),
    "Lowered.save": (PATHS, lambda v, made: made["lowered"].save(v)),
    "Executable.save": (PATHS, lambda v, made: made["executable"].save(v)),
    "Portable.save": (PATHS, lambda v, made: made["portable"].save(v)),
    "load": (PATHS, lambda v, made: load(v)),
    "axis_names": (AXES, lambda v, made: mapped(axis_names=v)(X)),
    "mesh": (MESHES, lambda v, made: mapped(mesh=v)(X)),
    "in_specs": (SPECS, lambda v, made: mapped(in_specs=v)(X)),
    "out_specs": ((None, *SPECS), lambda v, made: mapped(out_specs=v)(X)),
    "lower": (TYPES, lambda v, made: mapped().lower(v)),
    "trace": ((*VALUES[:-2], *TYPES), lambda v, made: mapped().trace(v)),
    "call": (VALUES, lambda v, made: mapped()(v)),
    "call of an Executable": (VALUES, lambda v, made: made["executable"](v)),
    "result": (RESULTS[:-1], lambda v, made: mapped(lambda x: v)(X)),
    "traced result": (RESULTS, lambda v, made: mapped(lambda x: v).trace(X)),
    "in_axes": (
        DIMENSIONS,
        lambda v, made: in_mesh(lambda: smap(identity, in_axes=v, out_axes=0, axis_name="i")(X)),
    ),
    "axis_name": (
        (5, None, ["i"], ("i", "j"), "z", "", b"i", THING),
        lambda v, made: in_mesh(lambda: smap(identity, in_axes=0, out_axes=0, axis_name=v)(X)),
    ),
    "axes of assume_replicated": (
        (5, None, THING, "z", ["i", 5], [[]]),
        lambda v, made: mapped(lambda x: assume_replicated(x, v)).trace(X),
    ),
    "value of assume_replicated": (
        ("s", THING, struct(3), {"a": None, "b": "s"}),
        lambda v, made: mapped(lambda x: (assume_replicated(v, "i"), x)[1]).trace(X),
    ),
    "function": ((5, "f", [], THING, X), lambda v, made: mapped(v)(X)),
}


def test_there_are_more_than_two_hundred():
    assert sum(len(values) for values, _ in RUNS.values()) > 200


@pytest.mark.parametrize("name", RUNS)
def test_a_mistake_ends_in_an_error_of_ours(name, made):
    values, run = RUNS[name]
    raw, silent = [], []
    for value in values:
        shown = f"{name}: {value!r:.60}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                run(value, made)
        except ShmapError as error:
            text = str(error)
            parts = all(part in text for part in ("found:", "needed:", "fix:", "[SHM-E"))
            if not parts or len(text) > 4000:
                raw.append(f"{shown}: {text:.200}")
        except Exception as error:
            raw.append(f"{shown}: {type(error).__name__}: {error!s:.200}")
        else:
            silent.append(shown)
    assert not raw, "\n".join(raw)
    assert not silent, "\n".join(silent)


COMMANDS = (
    *(["/"], ["--pass-pipeline", ""], ["--pass-pipeline", "builtin.module("], ["--", "x"], ["---"]),
    *(["--pass-pipeline", "builtin.module(shmap-verify{)"], ["--pass-pipeline", "cse"]),
    *(["--pass-pipeline", f"builtin.module(shmap-combine-all-reduces{{limit={LONG}}})"],),
    *(["--shmap-combine-all-reduces=limit=x"], ["--shmap-combine-all-reduces=limit='"]),
    *(["--shmap-verify=x"], ["--shmap-wrap-manual=partitioner"], ["--nonsense"], ["a", "b"]),
    *(["--load-pass", "/"], ["--load-pass", "none.py"], ["-o", "/"], ["-o", "/none/x"]),
    *(["--pass-pipeline", "builtin.module(\0)"], ["--cse", "--pass-pipeline", "builtin.module()"]),
)


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(argv)[:40].replace("\0", "0"))
def test_a_wrong_command_line_gets_one_message(argv, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("module {}"))
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        assert shmap_opt.main(argv) == 2
    assert "Traceback" not in stderr.getvalue()
    assert stderr.getvalue().startswith("shmap-opt: error: ")
    assert stderr.getvalue().rstrip().endswith("[SHM-U01: docs/errors.md#shm-u01]")
