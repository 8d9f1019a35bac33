"""Modules of other producers in body form, with what crosses their boundary."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

import shmap_passes
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
from shmap_passes.checks.verify import Verify
from shmap_passes.diagnostics import file_line_col, first_complaint
from shmap_passes.files.parse import UnreadableArtifact
from shmap_passes.import_.body_of import name_entry
from shmap_passes.import_.import_custom_calls import ImportCustomCalls
from shmap_passes.import_.import_manual_computation import REGION, ImportManualComputation
from shmap_passes.import_.round_trip import has_custom_regions
from shmap_passes.import_.sharding_calls import ENTERS, LEAVES
from shmap_passes.ir.body_form import MANUAL_AXES, BodyForm, read_body_form
from shmap_passes.ir.collective_ops import COLLECTIVES, call_target
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.inline_calls import functions_of
from shmap_passes.ir.ops import is_token, terminator, walk

from shmap_compiler.base.errors import OptionProblem, Problem, ProgramName, TargetError
from shmap_compiler.base.untyped import OpView
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.imported_signature import Given, signature_of

_OWN_LINE = re.compile(r'"-":(\d+:\d+)')
_NAMED = re.compile(r'loc\("((?:[^"\\]|\\.)*)"(?:\(|\)$)')
"""A location with a name, which XLA keeps beside the line: `loc("psum"("file.py":1:2))`."""


@dataclass(frozen=True)
class ImportedBody:
    """A module in body form, without tokens.

    Attributes:
      text: with the lines of the producer, or those of the module.
      is_shardy: whether it came with regions of Shardy's.
      signature: of the program.
    """

    text: str
    is_shardy: bool
    signature: Signature


def import_body(
    text: str | bytes, axes: Mapping[str, int] | None, who: ProgramName
) -> ImportedBody:
    """Reads a module and brings it into body form.

    Raises:
      TargetError: the text is not a module, it has no manual region, or JAX lacks one of its types.
      PassFailure: a pass of `shmap_passes` rejects it.
    """
    with shmap_passes.make_context() as context, ir.Location.unknown():
        module = _with_lines(_parse(text, context, who), who)
        opview: OpView = module.operation.opview
        name_entry(opview)
        importer = _importer(opview, axes, who)
        _refuse_callbacks(opview, who)
        _name_operations(module.operation)
        given = Given.of(opview)
        passes = (Verify(),) if importer is None else (importer, Verify())
        shmap_passes.run(module, passes)
        if importer is not None:
            _name_what_was_added(module.operation)
        form = read_body_form(opview)
        _check_axes(form, axes, who)
        signature = signature_of(form, given, who)
        _remove_tokens(form.main)
        body = str(module.operation.get_asm(enable_debug_info=True))
        return ImportedBody(body, isinstance(importer, ImportManualComputation), signature)


def _parse(text: str | bytes, context: ir.Context, who: ProgramName) -> ir.Module:
    fix = "print it again with the version that wrote it, in StableHLO and Shardy's dialect"
    try:
        return shmap_passes.parse(text, context)
    except UnreadableArtifact as error:
        problem = Problem("module", str(error), "a StableHLO module", fix)
        raise TargetError(who, [problem]) from None
    except ir.MLIRError as error:
        problem = Problem(*first_complaint(error, who), "a StableHLO module", fix)
        raise TargetError(who, [problem]) from None


def _with_lines(module: ir.Module, who: ProgramName) -> ir.Module:
    """The module, whose own lines are the locations of operations that have no others."""
    text = str(module.operation.get_asm(enable_debug_info=True))
    name = json.dumps(who)
    return ir.Module.parse(_OWN_LINE.sub(lambda found: f"{name}:{found[1]}", text))


def _importer(
    module: OpView, axes: Mapping[str, int] | None, who: ProgramName
) -> ImportManualComputation | ImportCustomCalls | None:
    """The pass that brings the module into body form; None if it is in body form."""
    main = functions_of(module).get("main")
    if main is not None and MANUAL_AXES in main.attributes:
        return None
    if find_ops(module.operation, [REGION]) or has_custom_regions(module):
        return ImportManualComputation()
    calls = find_ops(module.operation, ["stablehlo.custom_call"])
    if any(call_target(op) in (ENTERS, LEAVES) for op in calls):
        mesh = ",".join(f"{name}={size}" for name, size in (axes or {}).items())
        return ImportCustomCalls(mesh=mesh)
    problem = Problem(
        "the module",
        "no manual region",
        f"per-device code: {REGION}, @{ENTERS} and @{LEAVES}, or a module in body form",
        "shmap explain FILE.py:NAME explains programs that XLA partitions by itself",
    )
    raise TargetError(who, [problem])


def _refuse_callbacks(module: OpView, who: ProgramName) -> None:
    calls = find_ops(module.operation, ["stablehlo.custom_call"])
    problems = [
        Problem(
            file_line_col(op.location),
            f"a call back into Python, @{call_target(op)}",
            "operations of XLA only: the module does not contain the function",
            "remove the callback or print",
        )
        for op in calls
        if "callback" in call_target(op)
    ]
    if problems:
        raise TargetError(who, problems)


def _check_axes(form: BodyForm, axes: Mapping[str, int] | None, who: ProgramName) -> None:
    if axes is not None and dict(axes) != form.mesh.sizes:
        found = ", ".join(f"{name}={size}" for name, size in axes.items())
        fix = "leave the axes out: the module has a mesh of its own"
        raise TargetError(who, [OptionProblem("axes", found, f"the mesh {form.mesh}", fix)])


def _remove_tokens(main: func.FuncOp) -> None:
    """Makes the tokens that `main` takes, and drops those that it returns."""
    block, end = main.entry_block, terminator(main.entry_block)
    arguments, results = list(block.arguments), list(end.operands)
    ins = [k for k, value in enumerate(arguments) if not is_token(value.type)]
    outs = [k for k, value in enumerate(results) if not is_token(value.type)]
    if len(ins) == len(arguments) and len(outs) == len(results):
        return
    for number in reversed(range(len(arguments))):
        if number not in ins:
            with ir.InsertionPoint.at_block_begin(block), main.location:
                made = stablehlo.CreateTokenOp()
            arguments[number].replace_all_uses_with(made.result)
            block.erase_argument(number)
    with ir.InsertionPoint(end), end.location:
        func.ReturnOp([results[k] for k in outs])
    end.erase()
    for name, kept in (("arg_attrs", ins), ("res_attrs", outs)):
        if name in main.attributes:
            listed = list(ir.ArrayAttr(main.attributes[name]))
            main.attributes[name] = ir.ArrayAttr.get([listed[k] for k in kept])
    type_ = ir.FunctionType.get(
        [argument.type for argument in block.arguments], [results[k].type for k in outs]
    )
    main.attributes["function_type"] = ir.TypeAttr.get(type_)


def _name_operations(root: ir.Operation) -> None:
    """Names operations after themselves, as JAX names them after its primitives.

    XLA keeps the lines of operations that have names only, and the names of collectives tell which
    of them its partitioner added. Some compilers name a reduction after what it combines with.
    """
    for op in walk(root):
        found = _NAMED.match(str(op.location))
        own = op.name.partition(".")[2]
        if found is None:
            op.location = ir.Location.name(own, op.location)
        elif op.name in COLLECTIVES and not found[1].endswith(own):
            op.location = ir.Location.name(f"{found[1]}/{own}", op.location)
    for op in find_ops(root, sorted(COLLECTIVES)):
        for inner in walk(op):
            inner.location = op.location


def _name_what_was_added(root: ir.Operation) -> None:
    """Names operations that the import has made; its collectives are not the producer's."""
    for op in walk(root):
        if _NAMED.match(str(op.location)) is None:
            own = "reshard" if op.name in COLLECTIVES else op.name.partition(".")[2]
            op.location = ir.Location.name(own, op.location)
