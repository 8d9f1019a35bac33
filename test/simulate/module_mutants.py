"""Wrong modules: one mistake each that a wrong pass could make in a right module.

The mistakes: another mesh axis, another reduction, pairs of a permutation exchanged or reversed, a
collective left out, another dimension, another order of devices in groups, swapped branches, a loop
that ends earlier, another position of the device.
"""

from collections.abc import Iterator

import numpy as np
from jaxlib.mlir import ir
from shmap_passes import make_context
from shmap_passes.ir.collective_ops import COLLECTIVES, GROUPS, name_group_axes, whole_axes
from shmap_passes.ir.ops import walk

MUTABLE = {
    *COLLECTIVES,
    "stablehlo.case",
    "stablehlo.if",
    "stablehlo.custom_call",
    "stablehlo.compare",
}
OTHER_REDUCTIONS = {
    "stablehlo.add": ("stablehlo.maximum", "stablehlo.multiply"),
    "stablehlo.maximum": ("stablehlo.minimum", "stablehlo.add"),
    "stablehlo.minimum": ("stablehlo.maximum", "stablehlo.add"),
}


def mutants(text: str, axes: dict[str, int]) -> Iterator[tuple[str, str]]:
    """(what is wrong, the module) of every mutant of a module in body form."""
    with make_context() as context, ir.Location.unknown():
        original = ir.Module.parse(text, context)
        names = [op.name for op in walk(original.operation)]
    for number, name in enumerate(names):
        for mistake in MISTAKES if name in MUTABLE else ():
            for variant in range(2):
                with context, ir.Location.unknown():
                    module = original.operation.clone()
                    op = walk(module)[number]
                    if not mistake(op, axes, variant) or not module.verify():
                        continue
                    mutant = module.get_asm(enable_debug_info=True)
                yield f"{mistake.__name__}{variant} of {name} {number}", mutant


def another_axis(op, axes, variant):
    if op.name not in COLLECTIVES or GROUPS not in op.attributes:
        return False
    old = whole_axes(op)
    sizes = {axis: axes[axis] for axis in old or ()}
    others = [a for a in axes if a not in sizes and list(sizes.values()) == [axes[a]]]
    if old is None or variant or not others:
        return False
    name_group_axes(op, others[:1])
    return True


def fewer_axes(op, axes, variant):
    if op.name != "stablehlo.all_reduce" or len(whole_axes(op) or ()) < 2:
        return False
    name_group_axes(op, [whole_axes(op)[variant]])
    return True


def another_order(op, axes, variant):
    old = whole_axes(op) if op.name in COLLECTIVES and GROUPS in op.attributes else None
    if variant or not old or len(old) < 2 or op.name == "stablehlo.all_reduce":
        return False
    name_group_axes(op, old[::-1])
    return True


def another_reduction(op, axes, variant):
    if op.name not in ("stablehlo.all_reduce", "stablehlo.reduce_scatter"):
        return False
    block = op.regions[0].blocks[0]
    combine = block.operations[0].operation
    if combine.name not in OTHER_REDUCTIONS:
        return False
    with ir.InsertionPoint(combine):
        new = ir.Operation.create(
            OTHER_REDUCTIONS[combine.name][variant],
            results=[combine.results[0].type],
            operands=list(block.arguments),
        )
    combine.results[0].replace_all_uses_with(new.results[0])
    combine.erase()
    return True


def another_permutation(op, axes, variant):
    if op.name != "stablehlo.collective_permute":
        return False
    pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"])).copy()
    changed = pairs.copy()
    if variant:
        changed[:2, 1] = pairs[1::-1, 1]  # two targets exchanged
    else:
        changed = pairs[:, ::-1]  # sent back
    if {tuple(p) for p in changed.tolist()} == {tuple(p) for p in pairs.tolist()}:
        return False
    op.attributes["source_target_pairs"] = ir.DenseElementsAttr.get(
        np.ascontiguousarray(changed).data
    )
    return True


def a_pair_less(op, axes, variant):
    if op.name != "stablehlo.collective_permute" or variant:
        return False
    pairs = np.array(ir.DenseIntElementsAttr(op.attributes["source_target_pairs"]))
    op.attributes["source_target_pairs"] = ir.DenseElementsAttr.get(
        np.ascontiguousarray(pairs[1:]).data
    )
    return True


def left_out(op, axes, variant):
    if variant or op.name not in COLLECTIVES or op.operands[0].type != op.results[0].type:
        return False
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()
    return True


def another_dimension(op, axes, variant):
    names = {
        "stablehlo.all_to_all": ("split_dimension", "concat_dimension"),
        "stablehlo.all_gather": ("all_gather_dim",),
        "stablehlo.reduce_scatter": ("scatter_dimension",),
    }.get(op.name, ())
    if variant >= len(names):
        return False
    old = ir.IntegerAttr(op.attributes[names[variant]])
    op.attributes[names[variant]] = ir.IntegerAttr.get(old.type, 1 - old.value)
    try:
        return op.verify()
    except ir.MLIRError:
        return False


def swapped_branches(op, axes, variant):
    if variant or op.name not in ("stablehlo.case", "stablehlo.if") or len(op.regions) != 2:
        return False
    first, second = (region.blocks[0] for region in op.regions)
    moved = list(first.operations)
    for each in list(second.operations):
        each.operation.move_before(moved[0])
    for each in moved:
        if len(second.operations):
            each.operation.move_after(second.operations[len(second.operations) - 1])
        else:
            ir.InsertionPoint(second).insert(each.operation.detach_from_parent())
    return True


def another_device(op, axes, variant):
    if variant or op.name != "stablehlo.custom_call" or "axis_index" not in str(op):
        return False
    config = ir.DictAttr(op.attributes["backend_config"])
    (old,) = [ir.StringAttr(a).value for a in ir.ArrayAttr(config["axes"])][:1]
    others = [a for a in axes if a != old]
    op.attributes["backend_config"] = ir.DictAttr.get(
        {"axes": ir.ArrayAttr.get([ir.StringAttr.get(others[0])])}
    )
    return True


def another_comparison(op, axes, variant):
    if op.name != "stablehlo.compare" or variant:
        return False
    text = str(op.attributes["comparison_direction"])
    other = {"LT": "LE", "GT": "LE", "GE": "LT", "EQ": "NE", "NE": "EQ", "LE": "LT"}
    old = text.rpartition(" ")[2].rstrip(">")
    op.attributes["comparison_direction"] = ir.Attribute.parse(text.replace(old, other[old]))
    return True


MISTAKES = (
    another_axis,
    fewer_axes,
    another_order,
    another_reduction,
    another_permutation,
    a_pair_less,
    left_out,
    another_dimension,
    swapped_branches,
    another_device,
    another_comparison,
)
