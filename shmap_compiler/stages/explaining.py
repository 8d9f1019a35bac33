"""explain: the cost of any program that JAX or this package can compile."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from shmap_compiler.base.descriptions import show_type_of, show_value
from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.jax_compat import HOST_KIND
from shmap_compiler.base.untyped import PyTree, Unchecked, Wrapped
from shmap_compiler.explain import Explanation
from shmap_compiler.explain import explain as explain_compiled
from shmap_compiler.records.loaded_program import LoadedProgram
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.any_function import lower_function
from shmap_compiler.stages.compiled import CompiledForTarget
from shmap_compiler.stages.executable import Executable
from shmap_compiler.stages.imported import ImportedModule
from shmap_compiler.stages.lowered import Lowered
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target

_COMPILED = (CompiledForTarget, Executable)


def explain(program: Wrapped, *args: PyTree, target: str | Target | None = None) -> Explanation:
    """Returns what a program costs on one device: collectives, compute, memory, time.

    Args:
      program: A function, jitted or not, such as a training step or `jax.grad(f)`, which is called
        with `args`; or a lowered or compiled program, of this package or of JAX; or a module of
        `import_module`.
      *args: Arguments of the function: arrays or `jax.ShapeDtypeStruct`s, with their shardings
        unless those are `in_shardings` of the jitted function or `in_specs` of the shard_mapped
        one. None for other programs.
      target: What to compile for, as for `Lowered.compile`. Defaults to the devices of the arrays,
        for which there are no times unless their figures are published.

    Raises:
      TargetError: The program does not fit the target, or is compiled already.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> step = jax.jit(jax.value_and_grad(lambda x: f(x).sum()))
      >>> explanation = explain(step, x, target="cpu:8")
      >>> [(c.kind, c.written) for c in explanation.collectives]
      [('all-reduce', True)]
    """
    if isinstance(target, str):
        target = Target.parse(target)
    if isinstance(program, (*_COMPILED, jax.stages.Compiled)):
        if target is not None and target != getattr(program, "target", None):
            raise _cannot(program, target, "compiled already", "a program that is not compiled")
        if isinstance(program, jax.stages.Compiled):
            return explain_compiled(_loaded(program))
        return program.explain()
    if isinstance(program, Lowered):
        return (program.compile() if target is None else program.compile(target)).explain()
    if isinstance(program, ImportedModule):
        return program.explain(target)
    if isinstance(program, Portable):
        return program.compile(target or "local").explain()
    if isinstance(program, jax.stages.Lowered):
        if target is not None:
            needed = "what it was lowered from, because a program is lowered for one platform"
            raise _cannot(program, target, "lowered already", needed)
        return explain_compiled(_loaded(program.compile()))
    if not callable(program):
        needed = "a function with its arguments, or a lowered or compiled program"
        raise TargetError(None, [Problem("program", show_value(program), needed, "pass one")])
    if target is None:
        jitted: Any = program if hasattr(program, "lower") else jax.jit(program)
        return explain(jitted.lower(*args))
    return lower_function(program, args, target.platform).compile(target).explain()


def _cannot(program: Wrapped, target: Target, found: str, needed: str) -> TargetError:
    problem = Problem(
        target.where,
        f"{show_type_of(program)}, which is {found}",
        needed,
        "pass the function and its arguments: explain(f, *args, target=...)",
    )
    return TargetError(None, [problem])


def _loaded(compiled: jax.stages.Compiled) -> LoadedProgram:
    """A program that JAX compiled, with what can be found out about its signature."""
    inputs: Any = compiled.args_info
    leaves = jax.tree_util.tree_leaves_with_path(inputs)
    shardings = jax.tree.leaves(compiled.input_shardings)
    known = len(shardings) == len(leaves)
    named = [s for s in shardings if isinstance(s, NamedSharding)]
    mesh = named[0].mesh if named else AbstractMesh((_count(shardings),), ("devices",))
    specs = [s.spec if isinstance(s, NamedSharding) else PartitionSpec() for s in shardings]
    signature = Signature(
        who="a program that JAX compiled",
        name="program",
        mesh=mesh,
        in_tree=None,
        in_paths=tuple(f"args{jax.tree_util.keystr(path[1:])}" for path, _ in leaves)
        if known
        else (),
        static=(),
        constants=(),
        in_types=tuple(jax.ShapeDtypeStruct(i.shape, i.dtype) for _, i in leaves) if known else (),
        in_specs=tuple(specs) if known else (),
        out_tree=None,
        out_types=(),
        out_specs=(),
        in_memory_kinds=tuple(HOST_KIND if s.memory_kind == HOST_KIND else None for s in shardings)
        if known
        else (),
        out_memory_kinds=(),
        places_results=False,
    )
    return LoadedProgram(signature, compiled)


def _count(shardings: list[Unchecked]) -> int:
    return max((len(s.device_set) for s in shardings), default=1)
