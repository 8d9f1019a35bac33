"""The table of contents: the passes, the order in which they run, and running them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from typing import Literal

from jaxlib.mlir import ir, passmanager

from .base import Pass, PipelineError, Violation
from .checks.check_hangs import CheckHangs
from .checks.check_replication import CheckReplication
from .checks.verify import Verify
from .diagnostics import Diagnostic, diagnostics_of
from .export.inline_meshes import InlineMeshes
from .export.legalize_collectives import LegalizeCollectives
from .export.wrap_manual import WrapManual
from .import_.import_custom_calls import ImportCustomCalls
from .import_.import_manual_computation import ImportManualComputation
from .ir.analyses import keeping_analyses
from .ir.dialects import make_context, register_mlir_passes
from .ir.memoize import memoizing
from .ir.printing import PassPrinting
from .overlap.choose_overlap import ChooseOverlap
from .overlap.order_gathered_products import OrderGatheredProducts
from .overlap.overlap_all_to_all import OverlapAllToAll
from .overlap.overlap_exchange_block import OverlapExchangeBlock
from .overlap.overlap_gather_contraction import OverlapGatherContraction
from .overlap.overlap_gather_product import OverlapGatherProduct
from .overlap.overlap_gather_scatter import OverlapGatherScatter
from .overlap.overlap_product_scatter import OverlapProductScatter
from .overlap.overlap_product_sum import OverlapProductSum
from .overlap.overlap_row_block import OverlapRowBlock
from .overlap.overlap_sequence_block import OverlapSequenceBlock
from .overlap.store_maxima import StoreMaxima
from .overlap.unroll_gathering_loops import UnrollGatheringLoops
from .simplify.combine_all_reduces import CombineAllReduces
from .simplify.elide_gathered_slices import ElideGatheredSlices
from .simplify.elide_invariant_reductions import ElideInvariantReductions
from .simplify.elide_trivial_collectives import ElideTrivialCollectives
from .simplify.fold_all_reduces import FoldAllReduces
from .simplify.form_reduce_scatter import FormReduceScatter
from .simplify.merge_equal_collectives import MergeEqualCollectives
from .simplify.normalize_all_to_all import NormalizeAllToAll

Partitioner = Literal["gspmd", "shardy"]
GroupNaming = Literal["axes", "one-axis", "ids"]

PASSES: tuple[type[Pass], ...] = (
    ImportManualComputation,
    ImportCustomCalls,
    Verify,
    CheckReplication,
    CheckHangs,
    ElideTrivialCollectives,
    ElideInvariantReductions,
    MergeEqualCollectives,
    ElideGatheredSlices,
    FormReduceScatter,
    FoldAllReduces,
    CombineAllReduces,
    NormalizeAllToAll,
    ChooseOverlap,
    UnrollGatheringLoops,
    OverlapExchangeBlock,
    OverlapAllToAll,
    OverlapRowBlock,
    OverlapSequenceBlock,
    OverlapGatherScatter,
    OverlapGatherProduct,
    OverlapGatherContraction,
    OverlapProductScatter,
    OverlapProductSum,
    OrderGatheredProducts,
    StoreMaxima,
    LegalizeCollectives,
    WrapManual,
    InlineMeshes,
)
"""Every pass of this project, in the order of the pipeline. It leaves out shmap-import-..., as
`shard_map` emits body form, and shmap-check-replication and shmap-check-hangs, as it checks the
Graph. It has shmap-choose-overlap, and the passes that rewrite what it chooses, if asked for."""


@functools.lru_cache(maxsize=16)
def pipeline(
    partitioner: Partitioner = "gspmd",
    groups: GroupNaming = "axes",
    overlap: ChooseOverlap | None = None,
) -> tuple[Pass, ...]:
    """The passes from body form to the module that XLA compiles.

    Args:
      overlap: chooses where transfers run beside products; None for nowhere.
    """
    return (
        # First: every later pass may then trust the module.
        Verify(),
        # Before the other simplifications: they need not handle axes of size one.
        ElideTrivialCollectives(),
        # Before fold-all-reduces: it removes axes that a reduction and its operand both name.
        # Before merge-equal-collectives: two sums may become equal once an axis is removed.
        ElideInvariantReductions(),
        # Before form-reduce-scatter: if an equal all_reduce is used whole, the slice costs nothing.
        MergeEqualCollectives(),
        ElideGatheredSlices(),
        # Before fold-all-reduces: an all_reduce over more axes than the slice does not match.
        FormReduceScatter(),
        FoldAllReduces(),
        # After all passes that match all_reduces: they would find slices of combined ones.
        CombineAllReduces(),
        NormalizeAllToAll(),
        # After all passes that simplify collectives: what they leave is what there is to overlap.
        *(() if overlap is None else (overlap, *overlap_passes())),
        # Before wrap-manual, which removes the manual axes that it reads from @main.
        LegalizeCollectives(groups=groups, partitioner=partitioner),
        # After everything that works on per-device types.
        WrapManual(partitioner=partitioner),
        # Last: it removes the mesh that all others look up.
        InlineMeshes(),
    )


def overlap_passes() -> tuple[Pass, ...]:
    """The passes that rewrite what shmap-choose-overlap has chosen."""
    return (
        # First: the others may rewrite the steps of a loop, each by itself.
        UnrollGatheringLoops(),
        # Before the pass that rewrites pairs of all-to-alls by themselves.
        OverlapExchangeBlock(),
        OverlapAllToAll(),
        # Before the passes that rewrite gathers and reduce-scatters by themselves.
        OverlapRowBlock(),
        OverlapSequenceBlock(),
        # Before the passes that rewrite its gather and its reduce-scatter by themselves.
        OverlapGatherScatter(),
        # Before product-scatter: what it computes from a product in pieces stays an operand.
        OverlapGatherProduct(),
        OverlapGatherContraction(),
        OverlapProductScatter(),
        OverlapProductSum(),
        # Last: of some of the products that it orders, the passes before compute pieces.
        OrderGatheredProducts(),
        # After the passes that compute pieces of a softmax, each with a maximum of its own.
        StoreMaxima(),
    )


class PassFailure(Exception):
    """A pass refused the module.

    Attributes:
      diagnostics: its reasons with their places.
      reproducer: the command that does the same again; empty if there is none.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic], reproducer: str = ""):
        self.diagnostics = tuple(diagnostics)
        self.reproducer = reproducer
        lines = [*map(str, self.diagnostics), *reproduce(reproducer)]
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return type(self), (self.diagnostics, self.reproducer), vars(self)


def reproduce(command: str) -> tuple[str, ...]:
    """The line of a message that names a reproducer; none for an empty command."""
    return (f"to reproduce: {command}",) if command else ()


def run(
    module: ir.Module,
    passes: Iterable[Pass | str],
    *,
    verify: bool = True,
    printing: PassPrinting | None = None,
    timing: bool = False,
) -> None:
    """Runs `passes` on `module` in place, through MLIR's own pass manager.

    Passes that need body form first check what shmap-verify checks, unless a pass before them has.

    Args:
      module: what to rewrite.
      passes: in order. Passes of MLIR and its dialects are given as text, as in "canonicalize".
      verify: whether MLIR verifies the module after each pass.
      printing: between which passes the module is printed to standard error. This turns
        multithreading off in the module's context.
      timing: whether to print to standard error how long each pass took.

    Raises:
      PassFailure: a pass refused the module.
      PipelineError: MLIR does not know a pass or its options.
    """
    printing = printing or PassPrinting()
    passes = tuple(passes)
    # Passes of MLIR do not say whether they change the module.
    all_say = all(isinstance(each, Pass) for each in passes)
    keeping = keeping_analyses() if all_say else contextlib.nullcontext()
    with module.context as context:
        manager = passmanager.PassManager("builtin.module")
        refused: list[Violation] = []
        verified = False
        for pass_ in passes:
            printing.add_dump(manager, "Before", pass_)
            if isinstance(pass_, Pass):
                must_verify = pass_.needs_body_form and not verified
                pass_.add_to(manager, refused, before=Verify() if must_verify else None)
                checks = pass_.needs_body_form or isinstance(pass_, Verify)
                verified = checks and not pass_.ends_body_form
            else:
                _add_by_name(pass_, manager)
                verified = False
            printing.add_dump(manager, "After", pass_)
        manager.enable_verifier(verify)
        printing.enable_on(manager, context)
        if timing:
            manager.enable_timing()
        try:
            with memoizing(context), keeping:
                manager.run(module.operation)
        except ir.MLIRError as error:
            ours = [Diagnostic.of_violation(violation) for violation in refused]
            raise PassFailure(ours or diagnostics_of(error)) from None


def require_known(passes: Iterable[Pass | str]) -> None:
    """Raises PipelineError for a pass, given as text, that MLIR does not know."""
    with make_context():
        manager = passmanager.PassManager("builtin.module")
        for pass_ in passes:
            if isinstance(pass_, str):
                _add_by_name(pass_, manager)


def _add_by_name(element: str, manager: passmanager.PassManager) -> None:
    register_mlir_passes()
    try:
        manager.add(element)
    except ValueError as error:
        reason = str(error).partition("\n")[0].rpartition("error: ")[2]
        raise PipelineError(f"pipeline element '{element}': {reason}") from None
