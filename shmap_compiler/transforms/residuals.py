"""What a forward Graph hands to the Graph that follows it.

A residual that is an input or an output of the forward Graph anyway, or another residual, is not
returned again: replicated weights would otherwise be stored once per device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import PartitionSpec

from shmap_compiler.graph import Graph


class Residuals:
    """Takes a pytree of block values apart in one trace, and puts it together in the next.

    Use in this order: `save` while the forward program is traced (with empty specs for what it
    adds), `with_specs` on its Graph, `values` and `all_specs` once that was applied, `restore` in
    the trace that follows.
    """

    def __init__(self) -> None:
        self._tree: Any = None
        # For each leaf: ("input", k) or ("output", k) of the forward Graph, or ("constant", value).
        self._sources: list[tuple[str, Any]] = []
        self._scalar_outputs: set[int] = set()

    def save(self, tree: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The leaves that must become additional outputs, after `outputs`."""
        leaves, self._tree = jax.tree.flatten(tree)
        known: dict[int, tuple[str, Any]] = {}
        for kind, values in (("output", outputs), ("input", inputs)):
            known.update({id(x): (kind, k) for k, x in enumerate(values)})
        new = []
        for leaf in leaves:
            if not isinstance(leaf, Tracer):
                self._sources.append(("constant", leaf))
                continue
            if id(leaf) not in known:
                position = len(outputs) + len(new)
                known[id(leaf)] = ("output", position)
                if jnp.ndim(leaf) == 0:
                    self._scalar_outputs.add(position)
                new.append(jnp.reshape(leaf, (1,)) if jnp.ndim(leaf) == 0 else leaf)
            self._sources.append(known[id(leaf)])
        return new

    def with_specs(self, forward: Graph, outputs: int) -> Graph:
        """The forward Graph with specs for the outputs after the first `outputs`.

        The blocks of all devices that may differ lie along dimension 0.
        """
        varying = forward.replication.outputs[outputs:]
        specs = [
            PartitionSpec(tuple(a for a in forward.manual_axes if a in axes) or None)
            for axes in varying
        ]
        return dataclasses.replace(forward, out_specs=(*forward.out_specs[:outputs], *specs))

    @property
    def _moved(self) -> list[tuple[str, int]]:
        return list(dict.fromkeys(s for s in self._sources if s[0] != "constant"))

    def values(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """The full arrays to hand on, each once."""
        return [inputs[k] if kind == "input" else outputs[k] for kind, k in self._moved]

    def all_specs(self, forward: Graph) -> list[PartitionSpec]:
        """The specs of `values`."""
        return [
            forward.in_specs[k] if kind == "input" else forward.out_specs[k]
            for kind, k in self._moved
        ]

    def restore(self, blocks: Sequence[Any]) -> Any:
        """The pytree given to `save`, from the blocks of `values`."""
        by_source = dict(zip(self._moved, blocks, strict=True))

        def leaf(source):
            kind, k = source
            if kind == "constant":
                return k
            block = by_source[source]
            return block[0] if kind == "output" and k in self._scalar_outputs else block

        return jax.tree.unflatten(self._tree, [leaf(s) for s in self._sources])
