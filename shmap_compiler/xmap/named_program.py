"""The handle on a named program, which prints it with named shapes."""

from __future__ import annotations

from dataclasses import dataclass

from shmap_compiler.xmap import named_shapes
from shmap_compiler.xmap.named_jaxpr import NamedJaxpr


@dataclass(frozen=True, eq=False, repr=False)
class NamedProgram(NamedJaxpr):
    """A traced function of named axes.

    Made by `XMapped.trace`. Printing it shows each equation with its line of source, and the named
    shape of every value.

    Attributes:
      fun: The user's function.
      jaxpr: A closed jaxpr without constants, on types without named dimensions.
      sizes: The size of each named axis.
      mesh: The mesh of the call, if there is one.

    Examples:
      >>> f = xmap(lambda x: lax.psum(x, "rows"), in_axes=["rows", ...], out_axes=[...])
      >>> program = f.trace(x)
      >>> program.sizes, [e.primitive.name for e in program.jaxpr.eqns]
      ({'rows': 16}, ['psum'])
    """

    def __str__(self) -> str:
        """Like the text of a jaxpr; `{rows:16}` after a type: the value extends along axis rows."""
        return named_shapes.show(self)

    def __repr__(self) -> str:
        """One line; `str` gives the whole program."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"<NamedProgram of `{self.name}`, axes {sizes or 'none'}>"
