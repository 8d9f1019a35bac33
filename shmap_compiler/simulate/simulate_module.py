"""Simulates a module on full arrays: reads it, checks the arguments, plays it, and reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np
from jaxlib.mlir import ir
from shmap_passes import PassRefused, make_context
from shmap_passes.diagnostics import file_line_col, first_complaint
from shmap_passes.files.parse import UnreadableArtifact
from shmap_passes.ir.mesh import MOST_LISTED
from shmap_passes.ir.ops import replica_count

from shmap_compiler.base.errors import OptionProblem, Problem, ProgramName, SimulationError
from shmap_compiler.base.random_keys import as_data
from shmap_compiler.base.untyped import AnyValue, TreeDef
from shmap_compiler.simulate.borders import UnreadableSharding
from shmap_compiler.simulate.compile import DynamicShape, Playable, compile_module
from shmap_compiler.simulate.device import CannotSimulate, Observer
from shmap_compiler.simulate.element_types import ELEMENT_TYPES, UnknownElementType
from shmap_compiler.simulate.module import HasOtherMesh, read_module, recursive_function
from shmap_compiler.simulate.non_finite import FirstNonFinite, has_non_finite
from shmap_compiler.simulate.own_copies import own_copies
from shmap_compiler.simulate.play import Input, Played, play
from shmap_compiler.simulate.simulation import Simulation, simulation_error

THE_MODULE = ProgramName("the module")


def simulate_module(
    text: str | bytes,
    args: Sequence[AnyValue],
    *,
    axes: Mapping[str, int] | None = None,
    who: str = THE_MODULE,
    out_tree: TreeDef = None,
) -> Simulation:
    """Simulates a StableHLO module on full arrays, device by device.

    It reads body form, and what JAX lowers programs with `shard_map` to: Shardy's manual
    computations, or GSPMD's custom calls. No device is needed.

    Args:
      text: The module: its text, its bytecode, or a portable artifact. Reports name source lines if
        it has locations, as the text of `jax.jit(f).lower(x).as_text(debug_info=True)` has, else
        the lines of the module.
      args: One array for each argument of `@main`. If it is on as many devices as the module is
        for, and its copies differ, each device has its own.
      axes: Names and sizes of the mesh axes, major axis first, if the module does not name them.
      who: What to call the program.
      out_tree: The structure of the results; by default a list.

    Returns:
      A `Simulation`.

    Raises:
      SimulationError: The module, or an operation in it, cannot be simulated.

    Examples:
      >>> f = jax.jit(shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
      >>> simulate_module(f.lower(x).as_text(debug_info=True), [x]).results[0].shape
      (16,)
    """
    program = playable(text, axes, who)
    inputs = checked_inputs(program, args, who)
    played = run(program, inputs, who)
    if played.hang is None and any(map(has_non_finite, played.results)):
        watch = FirstNonFinite()
        run(playable(text, axes, who, every_op=True), inputs, who, watch.see)
        non_finite = watch.found
    else:
        non_finite = None
    tensors = [k for k, type_ in enumerate(program.out_types) if type_ is not None]
    if out_tree is None:
        out_tree = jax.tree.structure([0] * len(tensors))
    return Simulation(
        who,
        program.module.mesh.sizes,
        played.exchanges,
        played.hang,
        played.unequal,
        non_finite,
        out_tree,
        tuple(played.results[k] for k in tensors) if played.results else (),
        tuple(played.blocks[k] for k in tensors) if played.blocks else (),
    )


def playable(
    text: str | bytes, axes: Mapping[str, int] | None, who: str, *, every_op: bool = False
) -> Playable:
    """The steps of a module. Raises SimulationError if it cannot be read."""
    try:
        module = read_module(text, make_context(), axes, who)
    except ir.MLIRError as error:
        place, found = first_complaint(error, who)
        fix = "print it again with the version that wrote it, in StableHLO and Shardy's dialect"
        raise simulation_error(who, place, found, "a StableHLO module", fix) from None
    except UnreadableArtifact as error:
        fix = "serialize it for the version of StableHLO that is here"
        raise simulation_error(who, "module", str(error), "a StableHLO module", fix) from None
    except PassRefused as error:
        raise _refused(error, who, "regions with their shardings") from None
    except HasOtherMesh as error:
        found = ", ".join(f"{name}={size}" for name, size in (axes or {}).items())
        fix = "leave the axes out: the module has a mesh of its own"
        problem = OptionProblem("axes", found, f"the mesh {error.mesh}", fix)
        raise SimulationError(who, [problem]) from None
    replicas = replica_count(module.module.operation)
    if replicas > 1:
        found, needed = f"{replicas} replicas", "one, whose devices are the partitions"
        fix = "lower the program for as many partitions, as jax.jit does, and not for replicas"
        raise simulation_error(who, "module", found, needed, fix)
    if "main" not in module.functions:
        found, fix = f"the functions {', '.join(module.functions)}", "name the entry function main"
        if not module.functions:
            found, fix = "no functions", "pass the whole module"
        needed = "a function @main, or one public function only"
        raise simulation_error(who, "module", found, needed, fix)
    if module.mesh.size > MOST_LISTED:
        found, needed = f"a mesh of {module.mesh.size:,} devices", f"at most {MOST_LISTED:,}"
        fix = "lower the program for a smaller mesh: every device is simulated"
        raise simulation_error(who, "module", found, needed, fix)
    if (name := recursive_function(module)) is not None:
        found, needed = f"@{name} calls itself, which XLA does not take", "calls without a cycle"
        raise simulation_error(who, "module", found, needed, "write a loop instead")
    with _unreadable_parts(who), module.module.context, ir.Location.unknown():
        return compile_module(module, every_op=every_op)


@contextlib.contextmanager
def _unreadable_parts(who: str) -> Iterator[None]:
    """Raises SimulationError for what cannot be read; functions are read when they are called."""
    try:
        yield
    except PassRefused as error:
        raise _refused(error, who, "a module in body form, as @main has manual axes") from None
    except DynamicShape as error:
        fix = "lower the program for arrays of known shapes"
        needed = "a shape that is known before the program runs"
        raise simulation_error(
            who, str(error.place), f"a value of type {error.type}", needed, fix
        ) from None
    except UnreadableSharding as error:
        needed = "a sharding over whole mesh axes"
        fix = "write shardings as JAX or this package does"
        raise simulation_error(who, "module", f"the sharding {error}", needed, fix) from None
    except UnknownElementType as error:
        needed = f"one of {', '.join(ELEMENT_TYPES)}"
        fix = "use another element type"
        found = f"an array of element type {error.args[0]}"
        raise simulation_error(who, "@main", found, needed, fix) from None


def _refused(error: PassRefused, who: str, needed: str) -> SimulationError:
    first, fix = error.violations[0], "print the module again with the version that wrote it"
    return simulation_error(who, file_line_col(first.location), first.message, needed, fix)


def checked_inputs(program: Playable, args: Sequence[AnyValue], who: str) -> list[Input]:
    """The arguments of `@main`, with arrays for tokens.

    Raises:
      SimulationError: their number, or the type of one, is wrong.
    """
    expected = [type_ for type_ in program.in_types if type_ is not None]
    if len(args) != len(expected):
        fix, needed = "pass one array for each argument", f"{len(expected)}, as @main takes"
        raise simulation_error(who, "args", f"{len(args)} arrays", needed, fix)
    inputs: list[Input] = []
    problems = []
    for number, (type_, arg) in enumerate(zip(expected, args, strict=True)):
        data = as_data(arg)
        array = np.asarray(data)
        if array.shape != type_[0] or not _same_kind(array, type_[1].dtype):
            needed = f"{type_[1].dtype.name}{list(type_[0])}, as @main takes"
            problems.append(
                Problem(
                    f"args[{number}]",
                    f"{array.dtype.name}{list(array.shape)}",
                    needed,
                    "pass such an array, or lower the program for the other type",
                )
            )
            continue
        array = np.ascontiguousarray(array, type_[1].dtype).reshape(type_[0])
        inputs.append(own_copies(data, array, program.module.mesh.size))
    if problems:
        raise SimulationError(who, problems)
    arrays = iter(inputs)
    return [np.empty(0) if type_ is None else next(arrays) for type_ in program.in_types]


def _same_kind(array: np.ndarray, dtype: np.dtype) -> bool:
    """Whether an array has the type, or gets it in JAX: wide ones, and numbers of Python's."""
    kinds = {"i": "iu", "f": "fV", "b": "b"}
    is_number = array.dtype in (np.int64, np.float64) and not array.shape
    if dtype in (array.dtype, jax.dtypes.canonicalize_dtype(array.dtype)):
        return True
    return is_number and dtype.kind in kinds[array.dtype.kind]


def run(
    program: Playable, inputs: Sequence[Input], who: str, observer: Observer | None = None
) -> Played:
    """Plays a program. Raises SimulationError for an op that cannot be played."""
    try:
        with _unreadable_parts(who):
            return play(program, inputs, observer)
    except CannotSimulate as error:
        place = str(error.place)
        raise simulation_error(who, place, error.found, error.needed, error.fix) from None
