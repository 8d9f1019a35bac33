"""A program on values, built from one with mutable references."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax import lax
from jax.extend import core as jex_core

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import (
    is_ref,
    is_ref_effect,
    open_jaxpr,
    replace_jaxpr,
    value_type,
)
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AnyValue, Atom, Aval, Effect, Eqn, Jaxpr, Parameter
from shmap_compiler.jaxprs.rewriting import Names, copy_equations, named


class ValueProgram:
    """A program on values while it is made from one with references.

    Which last values of references it returns is decided last, by `closed`. Subclasses define
    `equation`. A program that several equations hold is rewritten once, so that they still share
    it.

    Attributes:
      who: the user's function.
      jaxpr: the original program.
      refs: the atom that is the current value of each reference.
      atoms: the atoms that take the place of other variables.
      eqns: the equations so far.
      known: what was made of held programs, by the `id` of each. It keeps them alive, so that no
        other object gets their `id`.
    """

    def __init__(self, who: str, jaxpr: Jaxpr, known: dict[int, ValueProgram] | None = None):
        self.who = who
        self.jaxpr = jaxpr
        self.known = {} if known is None else known
        self._closed: dict[tuple[int, ...], Jaxpr] = {}
        inner = open_jaxpr(jaxpr)
        self.atoms: Names = {}
        self.refs: Names = {}
        self.eqns: list[Eqn] = []
        self.invars = [self._input(v) for v in inner.invars]
        for eqn in inner.eqns:
            self.equation(eqn)
        self.outvars = [self._output(v) for v in inner.outvars]

    def _input(self, var: Atom) -> Atom:
        if not is_ref(var.aval):
            return var
        self.refs[var] = jex_core.Var(value_type(var.aval))
        return self.refs[var]

    def _output(self, atom: Atom) -> Atom:
        if not isinstance(atom, jex_core.Literal) and atom in self.refs:
            raise BodyError(self.who, [_returned(atom.aval)])
        return self.read(atom)

    @property
    def written(self) -> list[int]:
        """The inputs that are references to which the program writes."""
        inner = open_jaxpr(self.jaxpr)
        return [
            k
            for k, var in enumerate(inner.invars)
            if var in self.refs and self.refs[var] is not self.invars[k]
        ]

    def closed(self, returned: Sequence[int]) -> Jaxpr:
        """The finished program.

        Args:
          returned: the inputs whose last values are additional results.
        """
        inner, key = open_jaxpr(self.jaxpr), tuple(returned)
        if key not in self._closed:
            self._closed[key] = replace_jaxpr(
                self.jaxpr,
                invars=self.invars,
                outvars=[*self.outvars, *(self.refs[inner.invars[k]] for k in returned)],
                eqns=self.eqns,
                effects={e for e in inner.effects if not is_ref_effect(e)},
                debug_info=inner.debug_info.with_unknown_names(),
            )
        return self._closed[key]

    def nested(self, jaxpr: Jaxpr) -> ValueProgram:
        """The program on values of a program that an equation holds."""
        if id(jaxpr) not in self.known:
            self.known[id(jaxpr)] = type(self)(self.who, jaxpr, self.known)
        return self.known[id(jaxpr)]

    def read(self, atom: Atom) -> Atom:
        """The atom of the new program: for a reference, its current value."""
        if isinstance(atom, jex_core.Literal):
            return atom
        return self.refs[atom] if atom in self.refs else self.atoms.get(atom, atom)

    def equation(self, eqn: Eqn) -> None:
        """Adds what takes the place of an equation of the original program."""
        raise NotImplementedError

    def put(self, eqn: Eqn, outvars: Sequence[Atom] = (), **fields: Parameter) -> None:
        """Adds an equation, on values.

        Args:
          outvars: additional results.
          fields: other fields that change.
        """
        for var in [v for v in eqn.invars if is_ref(v.aval)] if outvars else []:
            if eqn.invars.count(var) > 1:
                raise BodyError(self.who, [unknown_use(eqn)])
        invars = [self.read(v) for v in eqn.invars]
        if fields or any(new is not old for new, old in zip(invars, eqn.invars, strict=True)):
            eqn = eqn.replace(invars=invars, outvars=[*eqn.outvars, *outvars], **fields)
        self.eqns.append(eqn)

    def put_program(
        self, eqn: Eqn, fun: Callable[..., Sequence[AnyValue]], refs: Sequence[Atom]
    ) -> None:
        """Adds the equations of a function that takes the place of an equation.

        Args:
          fun: from the values of the operands to the results, then the new values of `refs`.
        """
        self.inline(eqn, fun, [self.read(v) for v in eqn.invars], list(eqn.outvars), refs)

    def inline(
        self,
        eqn: Eqn,
        fun: Callable[..., Sequence[AnyValue]],
        operands: Sequence[Atom],
        outvars: Sequence[Atom],
        refs: Sequence[Atom],
    ) -> None:
        """Adds the equations of a function, as `put_program` does.

        Args:
          operands: atoms of the new program.
          outvars: the variables of the original program that the results define.
        """
        if len(set(refs)) < len(refs):
            raise BodyError(self.who, [unknown_use(eqn)])
        types = [value_type(ref.aval) for ref in refs]

        def typed(*values):
            results = fun(*values)
            count = len(results) - len(refs)
            news = zip(results[count:], types, strict=True)
            return [*results[:count], *(_as_stored(x, t) for x, t in news)]

        closed = jax.make_jaxpr(typed)(*[v.aval for v in operands])
        template = open_jaxpr(closed)
        names: Names = dict(zip(template.invars, operands, strict=True))
        constants = zip(template.constvars, closed.consts, strict=True)
        names.update((v, jex_core.Literal(value, v.aval)) for v, value in constants)
        self.eqns += copy_equations(template.eqns, names, source_info=eqn.source_info, ctx=eqn.ctx)
        results = [named(v, names) for v in template.outvars]
        self.atoms.update(zip(outvars, results[: len(outvars)], strict=True))
        self.refs.update(zip(refs, results[len(outvars) :], strict=True))


def without_ref_effects(eqn: Eqn) -> set[Effect]:
    """The effects of an equation that are not those on references."""
    return {e for e in eqn.effects if not is_ref_effect(e)}


def _as_stored(x: AnyValue, wanted: Aval) -> AnyValue:
    """The value with exactly the type of a reference, which is never weak."""
    found = jax.typeof(x)
    if found.dtype == wanted.dtype and not found.weak_type:
        return x
    return lax.convert_element_type(x, wanted.dtype)


# ------------------------------------------------------------------------------------- mistakes


def unknown_use(eqn: Eqn) -> Problem:
    return Problem(
        f"{eqn.primitive} at {source_line(eqn)}",
        "a mutable reference used in a way that shmap_compiler does not know",
        "reads, writes and sums of parts of it, in loops, branches and calls",
        "read the value first, ref[...], and write the result back afterwards",
    )


def _returned(aval: Aval) -> Problem:
    return Problem(
        "a result of the function, or of one that it calls",
        f"a mutable reference, {aval}",
        "an array",
        "return its value: ref[...], or jax.freeze(ref)",
    )
