"""Reads the body form: what emission writes and every pass before wrap-manual reads.

    sdy.mesh @mesh = <["i"=4, "j"=2]>
    func.func public @main(
            %arg0: tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
        -> (tensor<2x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}, {}]>})
        attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>}

Types are per device; the attributes describe how the blocks are placed in the full arrays. Axes
that are not in `sdy.manual_axes` are automatic, except those in the optional
`shmap.outer_manual_axes`, which an enclosing region has made manual already. Tokens carry no
sharding. The optional `shmap.equal_arguments`, as in `array<i64: 0>`, lists arguments whose copies
along the other axes are equal for sure; those of the caller's arrays may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar, cast

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import PassRefused, Violation
from .analyses import analysis
from .boundary import Boundary, read_boundaries
from .memoize import memoized
from .mesh import Mesh
from .unverified import manual_axes, positions, strings

MANUAL_AXES = "sdy.manual_axes"
OUTER_MANUAL_AXES = "shmap.outer_manual_axes"
EQUAL_ARGUMENTS = "shmap.equal_arguments"
OWN_ATTRIBUTES = (MANUAL_AXES, OUTER_MANUAL_AXES, EQUAL_ARGUMENTS)
"""Those that @main has in this form only."""

_T = TypeVar("_T")

_ORIGIN = (
    "body form is what `shmap lower --stage body` prints and what this pass needs; "
    "shmap-import-manual-computation brings modules with sdy.manual_computation into it, and "
    "shmap-import-custom-calls those with @SPMDFullToShardShape"
)


@dataclass(frozen=True)
class BodyForm:
    """The entry function of a module in body form, and the contents of its attributes.

    Attributes:
      equal: the positions of arguments whose copies are equal whatever the caller passes.
    """

    main: func.FuncOp
    mesh: Mesh
    manual: tuple[str, ...]
    outer: tuple[str, ...]
    equal: frozenset[int] = frozenset()

    @property
    def module(self) -> ModuleOp:
        module = self.main.operation.parent
        assert module is not None, "a function is in a module"
        return cast("ModuleOp", module.operation.opview)

    @property
    def inputs(self) -> tuple[Boundary, ...]:
        return self._boundaries[0]

    @property
    def outputs(self) -> tuple[Boundary, ...]:
        return self._boundaries[1]

    @cached_property
    def _boundaries(self) -> tuple[tuple[Boundary, ...], tuple[Boundary, ...]]:
        """Read when asked for: most passes do not. Raises `PassRefused` if they cannot be read."""
        main = self.main
        arguments, results = (main.attributes.get(each) for each in ("arg_attrs", "res_attrs"))
        inputs, outputs, complaints = read_boundaries(main.type, arguments, results, self.mesh)
        if complaints:
            raise PassRefused(Violation(main.location, text) for text in complaints)
        return inputs, outputs

    @cached_property
    def empty_inputs(self) -> tuple[int, ...]:
        """The positions of arguments without elements."""
        return tuple(k for k, boundary in enumerate(self.inputs) if not boundary.has_elements)

    @cached_property
    def region(self) -> tuple[str, ...]:
        """All axes that are manual in the body, in mesh order."""
        here = {*self.manual, *self.outer}
        return tuple(axis for axis in self.mesh.names if axis in here)

    @cached_property
    def automatic(self) -> tuple[str, ...]:
        """The axes that XLA's partitioner still owns inside the body, in mesh order."""
        return self.mesh.without(self.region)

    @cached_property
    def is_one_device(self) -> bool:
        """Whether blocks are full arrays; XLA takes no manual sharding over one device."""
        return self.mesh.product(self.region) == 1

    @cached_property
    def is_partly_manual(self) -> bool:
        """Whether there are several devices along manual axes and along automatic ones."""
        return self.mesh.product(self.region) > 1 and self.mesh.product(self.automatic) > 1


@analysis
def read_body_form(module: ModuleOp) -> BodyForm:
    """Reads the body form of `module`.

    Raises:
      PassRefused: its entry function or its mesh is not in body form.
    """
    ops = list(module.body.operations)
    main = _only_main(module, ops)
    mesh = read_mesh(_only_mesh(module, ops))
    attributes = main.attributes
    if MANUAL_AXES not in attributes:
        raise _refusal(
            main,
            f"@main has no {MANUAL_AXES}, so it is not in body form; say which axes its types are "
            f"per-device over, as in attributes {{{MANUAL_AXES} = #sdy<manual_axes{{...}}>}}",
        )
    manual = manual_axes(attributes[MANUAL_AXES])
    if manual is None:
        raise _refusal(
            main,
            f"{MANUAL_AXES} of @main is {attributes[MANUAL_AXES]}, and must be "
            "#sdy<manual_axes{...}> with the axes that its types are per-device over",
        )
    names = 'a list of the names of axes, as in ["j"]; leave it out if no region is around @main'
    outer = _optional(main, OUTER_MANUAL_AXES, strings, names) or ()
    numbers = "an array of the positions of arguments, as in array<i64: 0>"
    equal = _optional(main, EQUAL_ARGUMENTS, partial(_arguments, main), numbers) or ()
    return BodyForm(main, mesh, manual, outer, frozenset(equal))


def _optional(
    main: func.FuncOp, name: str, read: Callable[[ir.Attribute], _T | None], needed: str
) -> _T | None:
    """What an attribute of @main says; None if it has none. Raises `PassRefused` if it is wrong."""
    if name not in main.attributes:
        return None
    found = read(main.attributes[name])
    if found is None:
        raise _refusal(main, f"{name} of @main is {main.attributes[name]}, and must be {needed}")
    return found


def _arguments(main: func.FuncOp, attribute: ir.Attribute) -> tuple[int, ...] | None:
    """The positions of arguments that an attribute lists; None if it does not."""
    found = positions(attribute)
    count = len(main.type.inputs)
    return found if found is not None and all(0 <= k < count for k in found) else None


def read_mesh(op: sdy.MeshOp) -> Mesh:
    return _mesh(op.sym_name, op.mesh)


@memoized
def _mesh(symbol: ir.Attribute, mesh: ir.Attribute) -> Mesh:
    axes = (sdy.MeshAxisAttr(axis) for axis in sdy.MeshAttr(mesh).axes)
    return Mesh(ir.StringAttr(symbol).value, tuple((axis.name, axis.size) for axis in axes))


def _only_main(module: ModuleOp, ops: Sequence[ir.OpView]) -> func.FuncOp:
    functions = [op for op in ops if isinstance(op, func.FuncOp)]
    for function in functions:
        if function.name.value == "main" and not function.is_external:
            return function
    have = ", ".join(f"@{function.name.value}" for function in functions) or "none"
    raise _refusal(
        module,
        f"the module has no function @main with a body; its functions: {have}",
    )


def _only_mesh(module: ModuleOp, ops: Sequence[ir.OpView]) -> sdy.MeshOp:
    meshes = [op for op in ops if isinstance(op, sdy.MeshOp)]
    if not meshes:
        raise _refusal(
            module,
            'the module has no sdy.mesh; declare the one it runs on: sdy.mesh @mesh = <["i"=4]>',
        )
    if len(meshes) > 1:
        raise PassRefused(
            Violation(
                mesh.location,
                f"@{ir.StringAttr(mesh.sym_name).value} is one of {len(meshes)} meshes; a module "
                "in body form runs on one: keep the one that @main's shardings name",
            )
            for mesh in meshes[1:]
        )
    mesh = meshes[0]
    if list(sdy.MeshAttr(mesh.mesh).device_ids):
        raise _refusal(
            mesh,
            f"@{ir.StringAttr(mesh.sym_name).value} lists device ids; devices are positions in the "
            "mesh here, leave the ids to whoever places the program",
        )
    return mesh


def _refusal(op: ir.OpView, message: str) -> PassRefused:
    return PassRefused([Violation(op.location, message, notes=(Violation(op.location, _ORIGIN),))])
