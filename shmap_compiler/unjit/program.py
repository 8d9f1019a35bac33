"""The body of the generated function: one statement, or part of one, for each operation.

An operation whose result is used once, by an operation of the same line of the user's, becomes part
of that one's expression. Broadcasts and numbers are written where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import COLLECTIVES
from shmap_passes.ir.mesh import Mesh
from shmap_passes.ir.ops import terminator, walk
from shmap_passes.ir.types import Value

from shmap_compiler.unjit import embedded
from shmap_compiler.unjit.known_values import Known
from shmap_compiler.unjit.layout import (
    WIDTH,
    Code,
    call,
)
from shmap_compiler.unjit.library_calls import find_calls
from shmap_compiler.unjit.loops import CONTROL
from shmap_compiler.unjit.names import Names
from shmap_compiler.unjit.normalizations import find_normalizations
from shmap_compiler.unjit.replacing_call import ReplacingCall, constants
from shmap_compiler.unjit.spelling.operation import Op
from shmap_compiler.unjit.spelling.table import SPELLINGS
from shmap_compiler.unjit.statements import Statements
from shmap_compiler.unjit.types import (
    shape_of,
    shown_type,
)
from shmap_compiler.unjit.user_lines import NOWHERE
from shmap_compiler.unjit.wide import Cluster, wide_clusters

_LONGEST_PART = 48
"""An expression that is longer becomes a statement."""
_LONGEST_BROADCAST = 24
"""A broadcast of a longer one is that of a variable."""


class NoSpelling(Exception):
    """An operation can neither be written in Python nor be embedded."""


class Program(Statements):
    """Writes blocks as statements."""

    def __init__(self, mesh: Mesh, names: Names, function: str):
        """`function` is the jitted function that the program is made of."""
        super().__init__(mesh, names, function)
        self._pending: dict[Value, ir.Operation] = {}
        self._left_out: set[Value] = set()
        self._wide: dict[ir.Operation, Cluster] = {}
        self._skipped: set[ir.Operation] = set()
        self._calls: dict[ir.Operation, ReplacingCall] = {}
        self._functions: dict[str, str] = {}

    # --------------------------------------------------------------------- values, as operands

    def leave_out(self, value: Value) -> None:
        """Does not write the operation of a value that only the end of its block uses."""
        if len(list(value.uses)) == 1:
            self._left_out.add(value)

    def skip(self, op: ir.Operation) -> None:
        """Does not write an operation."""
        self._skipped.add(op)

    def name_of(self, value: Value) -> Code:
        """The expression of a value that may be used many times: never a long one."""
        if value in self._pending:
            self._assign_pending([value])
        return self._known[value].code

    def function(self, region: ir.Region, name: str) -> str | None:
        """Defines a function that computes what a region computes; returns its name."""
        block = region.blocks[0]
        if any(len(each.operation.regions) for each in block.operations):
            return None
        return self.define(block, name, list("abcdefgh")[: len(block.arguments)])

    # -------------------------------------------------------------------------------- blocks

    def block(self, block: ir.Block) -> list[Value]:
        """Writes the operations of a block; returns what it ends with."""
        self._find_last(block)
        self._wide.update(wide_clusters(block))
        self._find_calls(block)
        for each in list(block.operations)[:-1]:
            self._write(each.operation)
        return list(terminator(block).operands)

    def define(
        self,
        block: ir.Block,
        wanted: str,
        wanted_arguments: Sequence[str],
        bound: Sequence[Value] | None = None,
    ) -> str:
        """Defines a function of the arguments of a block, just here; returns its name.

        Args:
          bound: arguments of the block that are no parameters.
        """
        name = self.names.fresh(wanted)
        free = [a for a in block.arguments if bound is None or a not in bound]
        parameters = [self.names.fresh(each) for each in wanted_arguments]
        for argument, parameter in zip(free, parameters, strict=True):
            self.bind(argument, parameter)
        self.open(f"def {name}({', '.join(parameters)}):")
        results = self.block(block)
        self.close(self.results(results))
        return name

    def _find_calls(self, block: ir.Block) -> None:
        """Finds the operations that are written as one call."""
        of_users = list(find_calls(block, self.jitted))
        own = [
            found
            for root, found in find_normalizations(block)
            if not any(root in each.ops for each in of_users)
        ]
        replaced: set[ir.Operation] = set()

        def is_replaced(value: Value) -> bool:
            users = [use.owner.operation for use in value.uses]
            return replaced.issuperset(users) and not any(
                user in self._calls and value in self._calls[user].inputs for user in users
            )

        for found in [*own, *of_users]:
            if not any(op in self._wide or op in self._skipped for op in found.ops):
                self._calls[found.ops[-1]] = self._with_definition(found)
                self._skipped.update(found.replaced())
                replaced.update(found.ops[-1:], found.replaced())
        known = constants()
        for each in reversed(list(block.operations)):
            op = each.operation
            if replaced and op in known and all(map(is_replaced, op.results)):
                self._skipped.add(op)
                replaced.add(op)

    def _with_definition(self, found: ReplacingCall) -> ReplacingCall:
        """A call of a function that the file defines, once for all calls of it."""
        if not found.definition:
            return found
        if found.definition not in self._functions:
            named = found.renamed(self.names.fresh(found.function))
            self._functions[found.definition] = named.function
            self.body.definitions[named.function] = named.definition.splitlines()
        return found.renamed(self._functions[found.definition])

    # ---------------------------------------------------------------------------- operations

    def _write(self, op: ir.Operation) -> None:
        if not any(list(result.uses) for result in op.results) and op.name not in COLLECTIVES:
            return
        if op in self._skipped:
            return
        if op in self._wide:
            self._embed_wide(op)
            return
        if op not in self._calls and (
            self._is_number(op) or self._is_position(op) or self._is_broadcast(op)
        ):
            return
        if len(op.results) == 1 and op.results[0] in self._left_out:
            return
        if op.name in CONTROL:
            self._assign_pending(_used_inside(op))
            CONTROL[op.name](self, op)
            return
        code = self._spelled(op)
        if code is not None and len(op.results) == 1:
            if self._may_wait(op, code):
                self._known[op.results[0]] = Known(code)
                self._pending[op.results[0]] = op
                return
            self._assign(op, code)
        elif code is not None:
            self._assign_all(op, code)
        else:
            self._embed(op)

    def _spelled(self, op: ir.Operation) -> Code | None:
        found, row = self._calls.get(op), SPELLINGS.get(op.name)
        if found is not None:
            operands = list(found.inputs)
        elif row is not None:
            operands = list(op.operands)
        else:
            return None

        def spell() -> Code | None:
            if found is not None:
                return found.spelled([self.exact(value) for value in operands])
            return None if row is None else row(Op(op, self))

        code = spell()
        waiting = [value for value in operands if value in self._pending]
        if code is not None and waiting and self._is_too_long(code):
            self._assign_pending(waiting)
            code = spell()
        for value in operands:
            self._pending.pop(value, None)
        return code

    def _is_too_long(self, code: Code) -> bool:
        return self.indent + 26 + len(code.text) > WIDTH

    def _may_wait(self, op: ir.Operation, code: Code) -> bool:
        """Whether an expression can be part of the one that uses it."""
        if op.name in COLLECTIVES or len(code.text) > _LONGEST_PART:
            return False
        uses = list(op.results[0].uses)
        if len(uses) != 1:
            return False
        user = uses[0].owner.operation
        if user.block != op.block or user == terminator(op.block):
            return False
        if user.name not in SPELLINGS and user.name != "stablehlo.broadcast_in_dim":
            return False
        if len(user.regions) and user.name not in ("stablehlo.reduce", *COLLECTIVES):
            return False
        here, there = self._line(op), self._line(user)
        return NOWHERE in (here, there) or (
            here.statement == there.statement and here.is_backward == there.is_backward
        )

    def _assign_pending(self, values: Iterable[Value]) -> None:
        for value in values:
            op = self._pending.pop(value, None)
            if op is not None:
                # What waits for this one waits no longer than it.
                self._assign(op, self._known[value].code)

    def _assign(self, op: ir.Operation, code: Code) -> None:
        value = op.results[0]
        name = self.names.fresh(self.wanted(op))
        self._comment(self._line(op))
        self._note(value, name)
        self.write(f"{name} = ", code, shown_type(value))
        self.bind(value, name)

    def _assign_all(self, op: ir.Operation, code: Code) -> None:
        self.assign_values(list(op.results), code, self.wanted(op), op)

    def _embed(self, op: ir.Operation) -> None:
        """Calls an operation as StableHLO."""
        if op.name in COLLECTIVES:
            raise NoSpelling(f"{op.name} of a kind that jax.lax does not have, at {op.location}")
        self._assign_pending(_used_inside(op))
        used = [result for result in op.results if list(result.uses)]
        self._call_embedded([op], used, op.name.partition(".")[2], self.wanted(op))

    def _embed_wide(self, op: ir.Operation) -> None:
        """Calls operations on 64-bit numbers together, as JAX has no such arrays here."""
        cluster = self._wide[op]
        if op != cluster.place or not cluster.outputs:
            return
        self._assign_pending(value for each in cluster.ops for value in _used_inside(each))
        self._call_embedded(cluster.ops, cluster.outputs, "wide", "narrow")

    def _call_embedded(
        self,
        ops: Sequence[ir.Operation],
        outputs: Sequence[Value],
        what: str,
        wanted: str,
    ) -> None:
        inputs, text = embedded.outline(ops, outputs)
        name = self.names.fresh(what.upper())
        self.body.definitions[name] = embedded.definition(name, text)
        self.body.embedded += [op.name for op in ops]
        code = call("call_stablehlo", name, *(self.exact(value) for value in inputs))
        self.assign_values(outputs, code, wanted, ops[-1])

    # ------------------------------------------------------- what is written where it is used

    def _is_broadcast(self, op: ir.Operation) -> bool:
        """Whether an operation is a broadcast that need not be written."""
        if op.name != "stablehlo.broadcast_in_dim":
            return False
        source, value = op.operands[0], op.results[0]
        dims = Op(op, self).integers("broadcast_dimensions")
        known = self._known[source]
        if known.is_number:
            self._known[value] = known
            self._constants[value] = self._constants[source]
            return True
        if known.source_shape is not None or list(dims) != sorted(dims):
            self._known[source] = Known(self.exact(source))
        if list(dims) != sorted(dims):
            return False
        if len(list(value.uses)) > 1 or len(known.code.text) > _LONGEST_BROADCAST:
            self.name_of(source)
        self._pending.pop(source, None)
        self._known[value] = Known(
            self._known[source].code, source_shape=shape_of(source), dims=tuple(dims)
        )
        return True


def _used_inside(op: ir.Operation) -> list[Value]:
    """The values that an operation and its regions use."""
    return list(dict.fromkeys(value for each in walk(op) for value in each.operands))
