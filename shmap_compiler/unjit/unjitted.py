"""unjit: the source of what XLA's partitioner made of a jitted program."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from shmap_compiler.base.errors import Problem, UnjitError, describe, function_name
from shmap_compiler.base.specs import varying_axes
from shmap_compiler.explain import Explanation
from shmap_compiler.frontend.shard_mapped import ShardMapped
from shmap_compiler.graph.graph import Graph
from shmap_compiler.stages.explaining import explain
from shmap_compiler.unjit import boundary
from shmap_compiler.unjit.body import NotConvertible, body_form
from shmap_compiler.unjit.conversion import ConversionFailed, shared
from shmap_compiler.unjit.partitioned import NotPartitioned, Partitioned, partition
from shmap_compiler.unjit.signature import Side, identifier, parameter_names, read_sides
from shmap_compiler.unjit.source import Source, write_source
from shmap_compiler.unjit.validation import UnjitValidation, validate
from shmap_compiler.unjit.wide import WideNumbers

Progress = Callable[[str], None]
_CALLBACK = re.compile(r'custom_call_target="([^"]*callback[^"]*)"')


@dataclass(frozen=True)
class Unjitted:
    """What XLA's partitioner made of a jitted program, as a module, a graph and Python source.

    Made by `unjit`.

    Attributes:
      who: The program.
      compiled: The program, as XLA compiled it.

    Examples:
      >>> shardings = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
      >>> f = jax.jit(lambda x, w: jnp.tanh(x) * w, in_shardings=shardings)
      >>> unjitted = unjit(f, x, 2.0)
      >>> unjitted.shard_map()(x, 2.0).shape
      (16,)
    """

    who: str
    compiled: jax.stages.Compiled
    _body: str
    _source: Source
    _inputs: tuple[Side, ...]
    _outputs: tuple[Side, ...]
    _result: Any
    _kept: tuple[int, ...]
    _mesh: jax.sharding.Mesh
    _args: tuple[Any, ...]

    def as_text(self, stage: str = "body") -> str:
        """Returns the module in body form: the program of one device.

        Args:
          stage: "body".

        Raises:
          UnjitError: There is no such stage.

        Examples:
          >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
          >>> "stablehlo.sine" in unjit(f, x).as_text("body")
          True
        """
        if stage != "body":
            fix = 'use as_text("body"), or unjitted.shard_map().lower(*args).as_text(stage)'
            problem = Problem("stage", repr(stage), "'body'", fix)
            raise UnjitError(f"unjit of {self.who}", [problem])
        return self._body

    def as_python(self) -> str:
        """Returns the source of a file that defines the program as a function of `shard_map`.

        Examples:
          >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
          >>> "jnp.sin(" in unjit(f, x).as_python()
          True
        """
        return self._source.text

    @property
    def embedded(self) -> tuple[str, ...]:
        """The operations that the source calls as StableHLO, because they have no name in `jax`."""
        return self._source.embedded

    @cached_property
    def _mapped(self) -> ShardMapped[..., Any]:
        return load(self._source, self._mesh)

    def shard_map(self) -> Callable[..., Any]:
        """Returns the function that the source defines, on the mesh of the jitted program.

        It takes the arguments of the jitted program and returns its results. It is a
        `ShardMapped`, unless arguments are in containers that Python cannot write, such as the
        states of optimizers.

        Examples:
          >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
          >>> unjit(f, x).shard_map().lower(x).compile()(x).shape
          (16,)
        """
        if self._takes_args_as_they_are:
            return self._mapped

        def by_hand(*args: Any) -> Any:
            return self.unflatten(self._mapped(*self.given(args)))

        by_hand.__name__ = by_hand.__qualname__ = self._source.name
        return by_hand

    @property
    def graph(self) -> Graph:
        """The `Graph` of the source.

        Examples:
          >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
          >>> unjit(f, x).graph.manual_axes
          ('i',)
        """
        return self._mapped.trace(*self.given(self._args))

    def validate(self, *args: Any) -> UnjitValidation:
        """Compares the source, the module and the jitted program.

        `unjit` does this with its own arguments before it returns.

        Args:
          *args: Arguments of the jitted program. By default those of `unjit`, with random numbers
            in place of `jax.ShapeDtypeStruct`s.

        Returns:
          An `UnjitValidation`.

        Examples:
          >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
          >>> unjit(f, x).validate(2 * x).holds
          True
        """
        return validate(
            who=self.who,
            compiled=self.compiled,
            body=self._body,
            source=self._source,
            mapped=self._mapped,
            kept=self._kept,
            mesh=self._mesh,
            args=args or self._args,
            given=self.given,
        )

    def prices(self) -> tuple[Explanation, Explanation]:
        """Returns what the jitted program costs, and what the source costs.

        Examples:
          >>> f = jax.jit(jnp.sum, in_shardings=NamedSharding(mesh, P("i")))
          >>> [len(each.collectives) for each in unjit(f, x).prices()]
          [1, 1]
        """
        lowered = jax.jit(self._mapped).lower(*self.given(self._args))
        ours = replace(explain(lowered), program="the source")
        return replace(explain(self.compiled), program="the jitted program"), ours

    def given(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the jitted program as the source takes them."""
        sides = zip(self._inputs, jax.tree.map(_key_data, tuple(args)), strict=True)
        return [side.given(value) for side, value in sides]

    def unflatten(self, results: Any) -> Any:
        """The results of the source as those of the jitted program."""
        values = [results] if self._result is None else list(results)
        made = [
            jax.tree.unflatten(jax.tree.structure(side.tree), jax.tree.leaves(value))
            for side, value in zip(self._outputs, values, strict=True)
        ]
        return made[0] if self._result is None else self._result(made)

    @property
    def _takes_args_as_they_are(self) -> bool:
        plain = all(side.is_plain for side in (*self._inputs, *self._outputs))
        return plain and not any(map(_is_key, jax.tree.leaves(self._args)))


def unjit(jitted: Callable[..., Any], *args: Any, progress: Progress | None = None) -> Unjitted:
    """Brings what XLA's partitioner made of a jitted program back to source.

    The program is compiled as it is, for the devices of its shardings. What the partitioner made
    of it becomes a module in body form, and Python source of a `shard_map` function with the same
    collectives. Both are compared with the jitted program on `args` before anything is returned.

    Args:
      jitted: `jax.jit(f, in_shardings=..., out_shardings=...)`.
      *args: Its arguments: arrays, or `jax.ShapeDtypeStruct`s.
      progress: Called with the name of each phase as it begins.

    Returns:
      An `Unjitted`.

    Raises:
      UnjitError: The program is not partitioned, holds what has no source, or its source does not
        compute the same.

    Examples:
      >>> rows, columns = NamedSharding(mesh, P("i")), NamedSharding(mesh, P(None, "i"))
      >>> transpose = jax.jit(lambda a: a.T, in_shardings=rows, out_shardings=rows)
      >>> "lax.all_to_all(" in unjit(transpose, jnp.ones((8, 8))).as_python()
      True
    """
    report = progress or (lambda phase: None)
    fun: Any = jitted if hasattr(jitted, "lower") else jax.jit(jitted)
    who = f"unjit of {describe(jitted)}"
    report("compiling")
    lowered = fun.lower(*args)
    try:
        made = partition(lowered)
    except NotPartitioned:
        problem = Problem(
            "the compiled program",
            "a program for one device",
            "one that XLA's partitioner divided among several",
            "give jax.jit in_shardings on a mesh, or pass arrays that are sharded",
        )
        raise UnjitError(who, [problem]) from None
    _refuse_callbacks(who, made.text)
    report("converting")
    unjitted = _unjitted(who, describe(jitted), fun, lowered, made, args)
    report("comparing")
    validation = unjitted.validate()
    if not validation.holds:
        raise UnjitError(who, [validation.problem()])
    return unjitted


def _unjitted(
    who: str,
    program: str,
    fun: Any,
    lowered: jax.stages.Lowered,
    made: Partitioned,
    args: Sequence[Any],
) -> Unjitted:
    compiled = made.compiled
    infos: Any = lowered.args_info
    leaves, tree = jax.tree.flatten(infos)
    ins: Any = compiled.input_shardings
    shardings = tree.flatten_up_to(ins)
    kept = tuple(k for k, sharding in enumerate(shardings) if sharding is not None)
    out_leaves, out_tree = jax.tree.flatten(lowered.out_info)
    out_shardings = out_tree.flatten_up_to(compiled.output_shardings)
    mesh = boundary.mesh_of([*shardings, *out_shardings])
    if mesh is None:
        problem = Problem(
            "the shardings of the compiled program",
            "none on a mesh with named axes",
            "a jax.sharding.NamedSharding for at least one argument or result",
            "use NamedSharding(mesh, P(...)) in in_shardings",
        )
        raise UnjitError(who, [problem])
    if mesh.is_multi_process:
        problem = Problem(
            "the mesh",
            f"devices of {jax.process_count()} processes",
            "devices of this process, on which the source is compared with the program",
            "run unjit in one process, on virtual devices",
        )
        raise UnjitError(who, [problem])
    try:
        placed_in = [boundary.placement(shardings[k], leaves[k].shape, mesh) for k in kept]
        placed_out = [
            boundary.placement(s, leaf.shape, mesh)
            for s, leaf in zip(out_shardings, out_leaves, strict=True)
        ]
        code = shared().convert(made.proto)
        groups = made.groups(mesh.size)
        body = body_form(code, groups, boundary.passes_mesh(mesh), placed_in, placed_out)
    except boundary.NotOnMesh as error:
        raise _refused(who, f"the sharding {error}", "one along whole axes of the mesh") from None
    except (ConversionFailed, NotConvertible, ValueError) as error:
        needed = "operations and groups of devices that StableHLO and body form have"
        raise _refused(who, str(error), needed) from None
    names = parameter_names(fun, len(infos[0]))
    inputs = read_sides(infos[0], names)
    is_several = type(lowered.out_info) in (tuple, list) and len(lowered.out_info) > 0
    result = type(lowered.out_info) if is_several else None
    outputs = read_sides(
        lowered.out_info if is_several else [lowered.out_info],
        [f"result_{k}" for k in range(len(lowered.out_info))] if is_several else ["result"],
    )
    name = identifier(function_name(fun)) if function_name(fun) != "<lambda>" else "program"

    def written(replicated: Mapping[int, tuple[str, ...]]) -> Source:
        about = (f"{program} as XLA's partitioner divides it, by shmap_compiler.unjit.",)
        jitted = function_name(fun)
        return write_source(body, name, jitted, about, inputs, outputs, result, kept, replicated)

    def assembled(source: Source) -> Unjitted:
        return Unjitted(
            who=program,
            compiled=compiled,
            _body=body,
            _source=source,
            _inputs=inputs,
            _outputs=outputs,
            _result=result,
            _kept=kept,
            _mesh=mesh,
            _args=tuple(args),
        )

    try:
        unjitted = assembled(written({}))
    except WideNumbers as error:
        problem = Problem(
            "the partitioned program",
            str(error),
            "arrays that JAX has: 64-bit numbers are switched off",
            "set jax.config.update('jax_enable_x64', True), or use narrower numbers",
        )
        raise UnjitError(who, [problem]) from None
    replicated = _hidden_replication(unjitted)
    return assembled(written(replicated)) if replicated else unjitted


def _hidden_replication(unjitted: Unjitted) -> dict[int, tuple[str, ...]]:
    """The results that are equal along axes for a reason that cannot be inferred."""
    mapped = unjitted._mapped.replace(check_vma=False)
    graph = mapped.trace(*unjitted.given(unjitted._args))
    found = {}
    for k, (varying, spec) in enumerate(
        zip(graph.replication.outputs, graph.out_specs, strict=True)
    ):
        mentioned = varying_axes(spec)
        missing = tuple(a for a in graph.manual_axes if a in varying and a not in mentioned)
        if missing:
            found[k] = missing
    return found


def load(source: Source, mesh: jax.sharding.Mesh) -> ShardMapped[..., Any]:
    """The function that a generated file defines, on another mesh of the same axes."""
    path = f"<unjit {source.name}>"
    lines = source.text.splitlines(keepends=True)
    linecache.cache[path] = (len(source.text), None, lines, path)
    namespace: dict[str, Any] = {"__name__": f"unjit_{source.name}"}
    exec(compile(source.text, path, "exec"), namespace)
    return namespace[source.name].replace(mesh=mesh)


def _refuse_callbacks(who: str, text: str) -> None:
    problems = [
        Problem(
            "a callback",
            f"a call back into Python, {target}",
            "operations of XLA only: the source cannot name the function",
            "remove jax.debug.print, pure_callback and io_callback",
        )
        for target in sorted(set(_CALLBACK.findall(text)))
    ]
    if problems:
        raise UnjitError(who, problems)


def _refused(who: str, found: str, needed: str) -> UnjitError:
    fix = "report it with the program; shmap explain shows its collectives meanwhile"
    return UnjitError(who, [Problem("the partitioned program", found, needed, fix)])


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    if not _is_key(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)
