"""Unjitted: what XLA's partitioner made of a jitted program, as `unjit` returns it."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax

from shmap_compiler.base.errors import Problem, UnjitError
from shmap_compiler.base.random_keys import as_keys, is_key
from shmap_compiler.base.untyped import AnyValue, Function, Leaf, PyTree
from shmap_compiler.explain import Explanation
from shmap_compiler.frontend.shard_mapped import ShardMapped
from shmap_compiler.graph.graph import Graph
from shmap_compiler.stages.explaining import explain
from shmap_compiler.targets import Target
from shmap_compiler.unjit.boundary import passes_mesh
from shmap_compiler.unjit.partitioned import portable_of
from shmap_compiler.unjit.savings import Saving, savings_of
from shmap_compiler.unjit.signature import Side
from shmap_compiler.unjit.source import Source
from shmap_compiler.unjit.validation import UnjitValidation, validate


@dataclass(frozen=True)
class Unjitted:
    """What XLA's partitioner made of a jitted program, as a module, a graph and Python source.

    Made by `unjit`.

    Attributes:
      who: The program.
      compiled: The program, as XLA compiled it for the devices of its shardings.
      target: What it was partitioned for; None if for these devices.

    Examples:
      >>> shardings = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
      >>> f = jax.jit(lambda x, w: jnp.tanh(x) * w, in_shardings=shardings)
      >>> unjitted = unjit(f, x, 2.0)
      >>> unjitted.shard_map()(x, 2.0).shape
      (16,)
    """

    who: str
    compiled: jax.stages.Compiled
    target: Target | None
    _jitted: Function
    _body: str
    _source: Source
    _inputs: tuple[Side, ...]
    _outputs: tuple[Side, ...]
    _out_types: tuple[PyTree, ...]
    _result: PyTree
    _kept: tuple[int, ...]
    _mesh: jax.sharding.Mesh
    _args: tuple[PyTree, ...]
    _rules: tuple[str, ...] = ()

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

    @property
    def hidden_rules(self) -> tuple[str, ...]:
        """The lines of derivative rules and functions without which gradients of the source differ.

        `jax.lax.stop_gradient`, `jax.custom_jvp` and `jax.custom_vjp` are not compiled, and
        functions such as `jax.lax.lgamma` are expanded. A comment at the head of the source names
        these lines, too.
        """
        return self._source.hidden_rules

    @cached_property
    def _mapped(self) -> ShardMapped[..., PyTree]:
        return load(self._source, self._mesh)

    def shard_map(self) -> Function:
        """Returns the function that the source defines, on the mesh of the jitted program.

        It takes the arguments of the jitted program and returns its results. It is a
        `ShardMapped`, unless arguments or results are typed random keys, or are in containers that
        Python cannot write, such as the states of optimizers.

        Examples:
          >>> f = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("i")))
          >>> unjit(f, x).shard_map().lower(x).compile()(x).shape
          (16,)
        """
        if self._takes_args_as_they_are:
            return self._mapped

        def by_hand(*args: PyTree) -> PyTree:
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

    def validate(self, *args: PyTree) -> UnjitValidation:
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
            jitted=self._jitted,
            rules=self._rules,
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
        """Returns what the jitted program costs, and what the source costs, on `target`.

        Examples:
          >>> f = jax.jit(jnp.sum, in_shardings=NamedSharding(mesh, P("i")))
          >>> [len(each.collectives) for each in unjit(f, x).prices()]
          [1, 1]
        """
        if self.target is None:
            given = self.given(self._args)
            ours = explain(jax.jit(self._mapped).lower(*given))
            theirs = explain(self.compiled)
        else:
            ours = self._mapped.lower(*self.given(self._args)).compile(self.target).explain()
            program = portable_of(self._jitted, self._args, self.compiled, self.target.platform)
            theirs = program.compile(self.target).explain()
        return replace(theirs, program="the jitted program"), replace(ours, program="the source")

    def savings(self) -> tuple[Saving, ...]:
        """Returns what each pass saves of the collectives that XLA's partitioner chose.

        The passes are those that run on the source when it is lowered. XLA's own passes, which
        `prices()` includes for both programs, may save some of it for the jitted program too.

        Examples:
          >>> f = jax.jit(lambda x: x + x.sum(), in_shardings=NamedSharding(mesh, P("i")))
          >>> unjit(f, x).savings()
          ()
        """
        return savings_of(self._body, passes_mesh(self._mesh))

    def given(self, args: Sequence[PyTree]) -> list[AnyValue]:
        """The arguments of the jitted program as the source takes them."""
        sides = zip(self._inputs, jax.tree.map(_key_data, tuple(args)), strict=True)
        return [side.given(value) for side, value in sides]

    def unflatten(self, results: PyTree) -> PyTree:
        """The results of the source as those of the jitted program."""
        values = [results] if self._result is None else list(results)
        types = iter(self._out_types)
        made: list[PyTree] = []
        for side, value in zip(self._outputs, values, strict=True):
            leaves = [as_keys(leaf, next(types)) for leaf in jax.tree.leaves(value)]
            made.append(jax.tree.unflatten(jax.tree.structure(side.tree), leaves))
        return made[0] if self._result is None else self._result(made)

    @property
    def _takes_args_as_they_are(self) -> bool:
        plain = all(side.is_plain for side in (*self._inputs, *self._outputs))
        leaves = [*jax.tree.leaves(self._args), *self._out_types]
        return plain and not any(map(is_key, leaves))


def load(source: Source, mesh: jax.sharding.Mesh) -> ShardMapped[..., PyTree]:
    """The function that a generated file defines, on another mesh of the same axes."""
    path = f"<unjit {source.name}>"
    lines = source.text.splitlines(keepends=True)
    linecache.cache[path] = (len(source.text), None, lines, path)
    namespace: dict[str, Any] = {"__name__": f"unjit_{source.name}"}
    exec(compile(source.text, path, "exec"), namespace)
    return namespace[source.name].replace(mesh=mesh)


def _key_data(leaf: Leaf) -> AnyValue:
    if not is_key(leaf):
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)
