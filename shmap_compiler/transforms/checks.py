"""checkify of a shard_mapped program: the Graph of the checked body.

Each device checks its own blocks. Its error leaves the program with a dimension for the devices,
which is split over them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import checkify
from jax.sharding import PartitionSpec

from shmap_compiler.base.jax_compat import add_device_errors, checkify_rules
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.primitive import bind, shmap_p
from shmap_compiler.tracing.trace import retrace


def _check(
    *inputs: AnyValue, graph: Graph, witness: AnyValue
) -> tuple[checkify.Error, list[AnyValue]]:
    """The rule of checkify for a shard_mapped program.

    Args:
      inputs: what this version of JAX carries from check to check (nothing, or a counter), the
        error found so far, the kinds of errors to look for, and the arguments of the program.
    """
    place = next(k for k, x in enumerate(inputs) if isinstance(x, checkify.Error))
    carried, (error, kinds, *args) = inputs[:place], inputs[place:]
    found, outs = _checked(graph, kinds, args)
    if not jax.tree.leaves(found):
        return error, outs

    def add(error, new):
        leaves, tree = jax.tree.flatten(new)
        return rule(*carried, error, kinds, *leaves, err_tree=tree, debug=False)[0]

    rule = next(f for primitive, f in checkify_rules().items() if primitive.name == "check")
    return add_device_errors(error, found, add), outs


def _checked(
    graph: Graph, kinds: AnyValue, args: AnyValue
) -> tuple[checkify.Error, list[AnyValue]]:
    """The errors of all devices, stacked, and the results."""
    structure = jax.tree.structure(())

    def body(*blocks):
        nonlocal structure
        error, outs = checkify.checkify(graph.fun, errors=kinds)(*blocks)
        leaves, structure = jax.tree.flatten(error)
        return [*(jnp.expand_dims(leaf, 0) for leaf in leaves), *outs]

    each = PartitionSpec(graph.manual_axes)

    def out_specs(types):
        return [*[each] * (len(types) - len(graph.out_specs)), *graph.out_specs]

    traced = retrace(graph, body, graph.in_specs, out_specs, [jax.typeof(x) for x in args])
    results = bind(traced.graph, *traced.constants, *args)
    count = structure.num_leaves
    return jax.tree.unflatten(structure, results[:count]), results[count:]


checkify_rules()[shmap_p] = _check
