"""Executable: a compiled program whose devices are attached."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding

from shmap_compiler.artifacts import is_same_in_file, write_executable, write_file
from shmap_compiler.base import specs
from shmap_compiler.base.descriptions import show_type_of, show_value
from shmap_compiler.base.errors import Problem, TargetTypeError
from shmap_compiler.base.jax_compat import call_compiled, reductions, setting, type_reductions
from shmap_compiler.base.untyped import AnyValue, Aval, Leaf, PyTree, TreeDef
from shmap_compiler.base.values import having, is_compared_by_identity, is_same_value
from shmap_compiler.explain import Explanation, explain
from shmap_compiler.graph.structural_keys import is_same_tree, metadata
from shmap_compiler.records.loaded_program import LoadedProgram


class Executable(LoadedProgram):
    """A compiled program, called on arrays, NumPy arrays and pytrees of them.

    Arguments are moved only if they are not placed as the program needs them. Results stay on their
    devices, as `jax.Array`s with the sharding of their out_specs. Made by `Lowered.compile`.

    Attributes:
      signature: The arguments and results of the program; its mesh has the devices it runs on.
      jax_compiled: The same program as a `jax.stages.Compiled` of the flat inputs.
      target: What the program was compiled for; None for the devices of its mesh.
      notes: Sentences about how it was compiled; `explain` repeats them.

    Examples:
      >>> f = shard_map(jnp.cumsum, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> executable = f.lower(x).compile()
      >>> executable(x)
      Array([ 0.,  1.,  2.,  5.,  4.,  9.,  6., 13.,  8., 17., 10., 21., 12.,
             25., 14., 29.], dtype=float32)
    """

    @staticmethod
    def of(program: LoadedProgram) -> Executable:
        """The handle of a program."""
        return Executable(program.signature, program.jax_compiled, program.target)

    def __repr__(self) -> str:
        """One line; `as_text` gives the program."""
        return f"<Executable of {self.signature.summary}, target {self.target or 'of its mesh'}>"

    @cached_property
    def _flat_input_shardings(self) -> list[NamedSharding]:
        return self.signature.in_shardings

    @cached_property
    def _constants(self) -> list[jax.Array]:
        constants = list(self.signature.constants)
        with having(self.signature.in_types[: len(constants)]):
            return jax.device_put(constants, self._flat_input_shardings[: len(constants)])

    @property
    def _in_types(self) -> Sequence[Aval]:
        return self.signature.in_types[len(self.signature.constants) :]

    @property
    def input_shardings(self) -> list[NamedSharding]:
        """One sharding per array argument, in flattening order."""
        return self._flat_input_shardings[len(self.signature.constants) :]

    @property
    def output_shardings(self) -> PyTree:
        """The shardings of the results, in the structure of the results."""
        return jax.tree.unflatten(self.signature.out_tree, self.signature.out_shardings)

    @property
    def in_tree(self) -> TreeDef:
        """The structure of the arguments, as `jax.stages` has it: of positions and keywords."""
        return self.signature.call_tree

    @property
    def out_tree(self) -> TreeDef:
        """The structure of the results."""
        return self.signature.out_tree

    @property
    def out_info(self) -> PyTree:
        """A `jax.ShapeDtypeStruct` for each result, with its sharding."""
        return self.signature.out_info

    def runtime_executable(self) -> object:
        """Returns the program as PJRT has it, as `jax.stages.Compiled` does."""
        return self.jax_compiled.runtime_executable()

    def explain(self) -> Explanation:
        """Returns what the program costs: collectives, time, memory, and layouts of arrays.

        Times are included for programs compiled for a target whose figures are published.
        """
        return explain(self)

    def save(self, path: str | Path) -> None:
        """Saves the compiled program; `load` reads it where such devices are attached.

        Args:
          path: The file to write.

        Raises:
          ArtifactError: The program, or a value it contains, cannot be saved.
        """
        write_file(path, self.signature.who, write_executable(self))

    def __call__(self, *args: PyTree) -> PyTree:
        try:  # JAX checks the arguments, and does so fast
            if self._packed is not None:
                return self._packed(self.jax_compiled(*args))
            leaves, tree = jax.tree.flatten(args)
            same = is_same_tree if self._has_metadata else operator.eq
            if same(tree, self.signature.in_tree) and not self.signature.static:
                return self._unflattened(self.jax_compiled(*self._constants, *leaves))
        except (NotImplementedError, TypeError, ValueError, OverflowError):
            pass  # an argument that has to be moved, or a mistake
        return self._unflattened(self._run(*jax.tree.flatten(args)))

    @cached_property
    def _has_metadata(self) -> bool:
        return bool(metadata(self.signature.in_tree))

    @cached_property
    def _packed(self) -> Callable[[list[jax.Array]], PyTree] | None:
        """Turns flat results into those of the user's function: one array or a tuple of arrays.

        None if the function returns another structure, or takes arguments that are not arrays.
        """
        signature = self.signature
        arguments = jax.tree.structure((0,) * len(signature.in_paths))
        if signature.constants or signature.in_tree != arguments or self._empty_results:
            return None
        if signature.out_tree == jax.tree.structure(0):
            return operator.itemgetter(0)
        results = jax.tree.structure((0,) * len(signature.out_types))
        return tuple if signature.out_tree == results else None

    def _unflattened(self, results: list[jax.Array]) -> PyTree:
        for k, sharding in self._empty_results:
            results[k] = jax.device_put(results[k], sharding)
        return jax.tree.unflatten(self.signature.out_tree, results)

    def _run(self, leaves: list[Leaf], tree: PyTree) -> list[jax.Array]:
        """Checks the arguments, moves them where necessary, and runs the program."""
        if not self._is_same(tree, self.signature.in_tree):
            self._refuse_structure(tree)
        inputs = self.signature.select(leaves)
        self._check(inputs, leaves)
        typed = zip(inputs, self._in_types, self.input_shardings, strict=True)
        placed = [_placed(*each) for each in typed]
        return call_compiled(self.jax_compiled, [*self._constants, *placed])

    @cached_property
    def _empty_results(self) -> list[tuple[int, NamedSharding]]:
        """Results without elements, for which XLA reports any sharding, and the ones they need."""
        typed = zip(self.signature.out_types, self.signature.out_shardings, strict=True)
        return [(k, s) for k, (t, s) in enumerate(typed) if 0 in t.shape]

    def _check(self, inputs: Sequence[AnyValue], leaves: Sequence[Leaf]) -> None:
        problems = [
            Problem(
                path,
                _found(x),
                f"{specs.show_type(t)}, for which this executable was compiled",
                "call the shard_mapped function itself inside jit, grad and vmap"
                if isinstance(x, Tracer)
                else "pass such an array, or lower and compile for the other type",
            )
            for x, t, path in zip(inputs, self._in_types, self.signature.in_paths, strict=True)
            if not _fits(x, t)
        ]
        placed = zip(inputs, self.input_shardings, self.signature.in_paths, strict=True)
        problems += [
            Problem(
                path,
                f"{_found(x)} that is not unreduced as the program needs it",
                f"an array with the spec {specs.show(sharding.spec)}",
                "reshard it inside jit, or call the shard_mapped function that makes such an array",
            )
            for x, sharding, path in placed
            if sharding.spec.unreduced and type_reductions(x) != reductions(sharding.spec)
        ]
        problems += [
            _other_value(path, leaves[position], value)
            for position, path, value in self.signature.static
            if not is_same_value(leaves[position], value)
        ]
        if problems:
            raise TargetTypeError(self.signature.who, problems)

    def _is_same(self, found: TreeDef, needed: TreeDef) -> bool:
        from_file = self.signature.is_from_file
        return is_same_tree(found, needed) or (from_file and is_same_in_file(found, needed))

    def _refuse_structure(self, tree: TreeDef) -> None:
        found, needed = f"the arguments {_paths(tree)}", _paths(self.signature.in_tree)
        where = "args"
        if _paths(tree) == needed:  # containers, their metadata or empty ones differ
            where, tree, needed_tree = self._first_difference(tree, self.signature.in_tree, where)
            found, needed = f"the structure {_shown(tree)}", _shown(needed_tree)
        problem = Problem(
            where,
            found,
            f"{needed}, for which this executable was compiled",
            "call it with the arguments given to lower(), or lower again",
        )
        raise TargetTypeError(self.signature.who, [problem])

    def _first_difference(
        self, found: TreeDef, needed: TreeDef, path: str
    ) -> tuple[str, TreeDef, TreeDef]:
        """The path of the first node that differs, and both structures there."""
        inside = found.children(), needed.children()
        if len(inside[0]) == len(inside[1]):
            for key, a, b in zip(_keys(found), *inside, strict=True):
                if not self._is_same(a, b):
                    return self._first_difference(a, b, path + key)
        return path, found, needed


def _paths(tree: PyTree) -> str:
    """The paths of all arguments of a structure: `args[0]['w'], args[1]`."""
    numbered = jax.tree.unflatten(tree, range(tree.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
    return ", ".join("args" + jax.tree_util.keystr(path) for path in paths) or "none"


def _shown(tree: TreeDef) -> str:
    """A structure as JAX writes it: `CustomNode(Scaled[(2,)], [*])`."""
    return str(tree).removeprefix("PyTreeDef(").removesuffix(")")


def _keys(tree: TreeDef) -> list[str]:
    """The path of each child of the outermost container."""
    node = jax.tree.unflatten(tree, [0] * tree.num_leaves)
    children, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    return [jax.tree_util.keystr(path) for path, _ in children]


def _fits(x: AnyValue, expected: Aval) -> bool:
    if isinstance(x, Tracer | jax.ShapeDtypeStruct):
        return False
    try:
        with having([expected]):
            found = jax.typeof(x)
    except (TypeError, OverflowError):
        return False
    return (found.shape, found.dtype) == (expected.shape, expected.dtype)


def _placed(x: AnyValue, type_: Aval, sharding: NamedSharding) -> jax.Array:
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    with having([type_]):
        return jax.device_put(x, sharding)


def _other_value(path: str, found: object, value: object) -> Problem:
    """What is wrong with an argument without spec."""
    needed = f"{show_value(value)}, for which this executable was compiled"
    if type(found) is type(value) and is_compared_by_identity(value):
        return Problem(
            path,
            f"{show_value(found)}, but not the object given to lower()",
            f"{needed}: the same object",
            "pass the object given to lower(); or, if it is an array, lower with a spec for it",
        )
    fix = "pass the value given to lower(), or lower and compile for the other one"
    return Problem(path, show_value(found), needed, fix)


def _found(x: object) -> str:
    if isinstance(x, jax.ShapeDtypeStruct):
        return f"a ShapeDtypeStruct, {specs.show_type(x)}, without a value"
    if isinstance(x, Tracer):
        return f"a value being traced, {specs.show_type(x.aval)}"
    try:
        return specs.show_type(jax.typeof(x))
    except OverflowError:
        bits = 64 if setting("jax_enable_x64") else 32
        return f"{show_value(x)} that {bits} bits do not hold"
    except TypeError:
        return f"{show_type_of(x)}, which is not an array"
