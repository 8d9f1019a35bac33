"""The form into which a site is to be rewritten, written on its operation.

The pass that chooses writes it, and the passes that rewrite read it:

    "stablehlo.all_gather"(%x) <{...}> {shmap.overlap = {name = "ring", order = array<i64: 0, 1>}}
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, cast, get_args

from jaxlib.mlir import ir

from ..ir.find_ops import find_ops
from ..ir.memoize import memoized, remember

FormName = Literal[
    "ring",
    "rows",
    "columns",
    "partial-sums",
    "chunks",
    "stages",
    "unroll",
    "row-chunks",
    "row-stages",
    "sequences",
    "sequence-sums",
    "summed-chunks",
    "asynchronous",
    "together",
    "stored-maximum",
]
Empty = Literal["allocate", "zeros"]

FORM = "shmap.overlap"
"""The name of the attribute."""

_USUAL = 4
"""Chunks, if a form does not say how many."""


@dataclass(frozen=True)
class Form:
    """How to rewrite a site.

    Attributes:
      name: "ring": blocks go round in halves, both ways, and are multiplied when they are there.
        "rows", "columns": the gathered, or the other, dimension in chunks. "partial-sums": sums go
        round and grow. "chunks": an exchange and what is computed from it, in chunks. "stages":
        chunks go from a gather through products to a reduce_scatter. "unroll": a loop.
        "row-chunks": chunks of rows go from gathers through products to partial sums, and are never
        joined. "row-stages": the same to reduce_scatters of chunks. "sequences": the same of chunks
        of sequences, where nothing is summed over rows. "sequence-sums": these, with partial sums
        for each chunk. "summed-chunks": as "row-chunks", with chunks of what is exchanged.
        "together": a gather stays, and its products are computed one right after the other.
        "stored-maximum": what a softmax subtracts is an array of its own.
      parts: the number of chunks, or of partial sums that are on the way at a time, or of the
        steps of a loop that become one; 0 for the usual number of the form, or for all steps.
      order: the place on the ring of each member of a group; () if the members are in the order of
        the ring. The members are numbered in the order of the axes of the collective.
      empty: how a buffer without contents is made: "allocate" with the custom call
        @AllocateBuffer, which XLA has on TPUs and GPUs only.
      barriers: whether optimization barriers keep the steps apart.
      stacked: whether the two halves of a step of a ring are one product.
      in_place: whether chunks are put in place in a buffer; else they are concatenated.
      narrow: whether f32 that is multiplied with default precision is sent as bf16.
      wide: whether partial sums are sent as f32, and rounded at the end only.
      shared: whether other sites are equal, so that a function is called at all of them.
      ordered: whether products that are the last to read large arrays come before chunks, or before
        partial sums; of "summed-chunks", whether a sum is stored after each chunk; of "sequences",
        whether products of what is gathered are stored before heads are taken apart.
    """

    name: FormName
    parts: int = 0
    order: tuple[int, ...] = ()
    empty: Empty = "zeros"
    barriers: bool = True
    stacked: bool = False
    in_place: bool = True
    narrow: bool = False
    wide: bool = False
    shared: bool = False
    ordered: bool = False

    def chunks(self, size: int) -> int:
        """So many equal chunks of a size: `parts`, or four; 0 if it is not cut, or cannot be."""
        parts = self.parts or _USUAL
        return parts if parts > 1 and size % parts == 0 else 0


def write(op: ir.Operation, form: Form) -> None:
    """Writes the form on an operation, in place of one that it had."""
    attribute = _attribute(form, op.context)
    op.attributes[FORM] = attribute
    remember(_form, (attribute,), form)


@memoized  # a program has few forms
def _attribute(form: Form, context: ir.Context) -> ir.DictAttr:
    with context:
        shared = {"shared": ir.BoolAttr.get(True)} if form.shared else {}
        return ir.DictAttr.get(
            {
                **shared,
                "name": ir.StringAttr.get(form.name),
                "parts": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), form.parts),
                "order": ir.DenseI64ArrayAttr.get(form.order),
                "empty": ir.StringAttr.get(form.empty),
                "barriers": ir.BoolAttr.get(form.barriers),
                "stacked": ir.BoolAttr.get(form.stacked),
                "in_place": ir.BoolAttr.get(form.in_place),
                "narrow": ir.BoolAttr.get(form.narrow),
                "wide": ir.BoolAttr.get(form.wide),
                "ordered": ir.BoolAttr.get(form.ordered),
            }
        )


def read(op: ir.Operation, names: Collection[FormName] = get_args(FormName)) -> Form | None:
    """The form that is written on an operation, if it has one of some names."""
    attribute = op.attributes.get(FORM)
    form = _form(attribute) if isinstance(attribute, ir.DictAttr) else None
    return form if form is not None and form.name in names else None


@memoized  # several passes ask for it
def _form(attribute: ir.DictAttr) -> Form | None:
    """The form that an attribute describes; None if it describes none."""
    name = _text(attribute, "name")
    empty = _text(attribute, "empty") or "zeros"
    if name not in get_args(FormName) or empty not in get_args(Empty):
        return None
    parts, order = _entry(attribute, "parts"), _entry(attribute, "order")
    return Form(
        cast("FormName", name),
        parts.value if isinstance(parts, ir.IntegerAttr) else 0,
        tuple(order) if isinstance(order, ir.DenseI64ArrayAttr) else (),
        cast("Empty", empty),
        _flag(attribute, "barriers", default=True),
        _flag(attribute, "stacked"),
        _flag(attribute, "in_place", default=True),
        _flag(attribute, "narrow"),
        _flag(attribute, "wide"),
        _flag(attribute, "shared"),
        _flag(attribute, "ordered"),
    )


def erase(op: ir.Operation) -> None:
    """Removes the form that is written on an operation, if any."""
    if FORM in op.attributes:
        del op.attributes[FORM]


def erase_all(root: ir.Operation, op_name: str, *names: FormName) -> None:
    """Removes forms of some names from the operations of a name inside `root`.

    What is left after a pass is on operations that other rewrites have changed. Nothing after the
    passes of this room takes the attribute.
    """
    for op in find_ops(root, [op_name]):
        if read(op, names) is not None:
            erase(op)


def _entry(attribute: ir.DictAttr, key: str) -> ir.Attribute | None:
    if key not in attribute:  # a DictAttr has no get
        return None
    try:
        return attribute[key]
    except TypeError:  # of a kind that the bindings have no class for
        return None


def _text(attribute: ir.DictAttr, key: str) -> str | None:
    value = _entry(attribute, key)
    return value.value if isinstance(value, ir.StringAttr) else None


def _flag(attribute: ir.DictAttr, key: str, default: bool = False) -> bool:
    value = _entry(attribute, key)
    return value.value if isinstance(value, ir.BoolAttr) else default
