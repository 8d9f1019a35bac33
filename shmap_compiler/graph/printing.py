"""Prints a Graph the way JAX prints a jaxpr, with mesh, specs and source lines."""

from __future__ import annotations

import itertools
import os
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jax.extend import core as jex_core

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import is_jaxpr, open_jaxpr
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Atom, Eqn, Jaxpr, Parameter


def print_program(
    heading: str,
    program: Jaxpr,
    in_layouts: Sequence[str],
    out_layouts: Sequence[str],
    suffix: Callable[[Atom], str],
    is_graph: Callable[[Parameter], bool],
) -> str:
    """The text of a per-device program.

    Programs that it holds more than once are printed once, in front of it: `let name = {...} in`.

    Args:
      program: a jaxpr.
      in_layouts, out_layouts: what is shown after `@` of each input and output.
      suffix: adds to the type of each variable.
      is_graph: whether a parameter of an equation is a Graph.
    """
    printer = _Printer(suffix, is_graph)
    jaxpr = open_jaxpr(program)
    lines = [f"{heading}:", *printer.shared_programs(jaxpr)]
    inputs = [f"{printer.binder(v)}@{s}" for v, s in zip(jaxpr.invars, in_layouts, strict=True)]
    lines.append(f"{{ lambda ; {' '.join(inputs)}. let")
    lines += printer.equations(jaxpr, "    ")
    outputs = [f"{printer.atom(v)}@{s}" for v, s in zip(jaxpr.outvars, out_layouts, strict=True)]
    lines.append(f"  in {_listed(outputs)} }}")
    return "\n".join(lines)


class _Printer:
    def __init__(self, suffix: Callable[[Atom], str], is_graph: Callable[[Parameter], bool]):
        self.suffix = suffix
        self.is_graph = is_graph
        self.names: dict[Any, str] = {}
        self.shared: dict[Jaxpr, str] = {}
        self.fresh = _names()

    def binder(self, var: Atom) -> str:
        if type(var).__name__ == "DropVar":
            return f"_:{self.type(var)}"
        self.names[var] = next(self.fresh)
        return f"{self.names[var]}:{self.type(var)}"

    def type(self, var: Atom) -> str:
        if not hasattr(var.aval, "dtype"):
            return str(var.aval)
        return specs.show_type(var.aval) + self.suffix(var)

    def atom(self, atom: Atom) -> str:
        if isinstance(atom, jex_core.Literal):
            aval: Any = atom.aval
            return f"{np.asarray(atom.val, aval.dtype)}:{specs.show_type(aval)}"
        return self.names[atom]

    def equations(self, jaxpr: Jaxpr, indent: str) -> Iterator[str]:
        for eqn in jaxpr.eqns:
            inputs = " ".join(self.atom(v) for v in eqn.invars)
            params, nested = self.params(eqn, indent)
            results = " ".join(self.binder(v) for v in eqn.outvars)
            head = f"{results} = {eqn.primitive}" if results else str(eqn.primitive)
            place = _comment(eqn)
            if nested:
                yield f"{indent}{head}[{place}"
                yield from ([f"{indent}  {params}"] if params else [])
                yield from nested
                yield f"{indent}] {inputs}".rstrip()
            else:
                params = f"[{params}]" if params else ""
                yield f"{indent}{head}{params} {inputs}".rstrip() + place

    def params(self, eqn: Eqn, indent: str) -> tuple[str, list[str]]:
        flat, named, nested = [], [], []
        for key, value in _shown_params(eqn):
            programs = _programs(value)
            names = [self.shared[inner] for inner in programs if inner in self.shared]
            if programs and len(names) == len(programs):
                named.append(f"{key}={names[0] if len(names) == 1 else _listed(names)}")
            elif programs:
                for inner in programs:
                    nested += self.program(f"{key}=", inner, indent + "  ")
            elif self.is_graph(value):
                nested += [f"{indent}  {line}" for line in str(value).splitlines()]
            elif _is_telling(value):
                flat.append(f"{key}={_plain(value)}")
        return " ".join(flat + named), nested

    def shared_programs(self, jaxpr: Jaxpr) -> Iterator[str]:
        """The definitions of the programs that are held more than once, in order of use."""
        for program, name in _names_of_shared(jaxpr).items():
            *lines, last = self.program(f"let {name} = ", program, "")
            yield from (*lines, f"{last} in")
            self.shared[program] = name

    def program(self, start: str, jaxpr: Jaxpr, indent: str) -> Iterator[str]:
        if jaxpr in self.shared:
            yield f"{indent}{start}{self.shared[jaxpr]}"
            return
        binders = " ".join(self.binder(v) for v in (*jaxpr.constvars, *jaxpr.invars))
        yield f"{indent}{start}{{ lambda ; {binders}. let"
        yield from self.equations(jaxpr, indent + "    ")
        yield f"{indent}  in {_listed([self.atom(v) for v in jaxpr.outvars])} }}"


def _shown_params(eqn: Eqn) -> Iterator[tuple[str, Parameter]]:
    # A witness computes nothing.
    return ((key, value) for key, value in eqn.params.items() if key != "witness")


def _programs(value: Parameter) -> list[Jaxpr]:
    """The programs that a parameter holds, if it holds nothing else."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [open_jaxpr(v) for v in values] if all(is_jaxpr(v) for v in values) else []


def _names_of_shared(jaxpr: Jaxpr) -> dict[Jaxpr, str]:
    """A name for each program that is held more than once, after those that it holds."""
    held: Counter[Jaxpr] = Counter()
    found: list[Jaxpr] = []

    def visit(program: Jaxpr) -> None:
        for eqn in program.eqns:
            for inner in (each for _, value in _shown_params(eqn) for each in _programs(value)):
                held[inner] += 1
                if held[inner] == 1:
                    visit(inner)
                    found.append(inner)

    visit(jaxpr)
    names: dict[str, Jaxpr] = {}
    for program in found:
        if held[program] > 1:
            function = re.sub(r"\W", "", program.debug_info.func_name) or "program"
            numbered = (f"{function}{number or ''}" for number in itertools.count())
            names[next(name for name in numbered if name not in names)] = program
    return {program: name for name, program in names.items()}


def _listed(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _plain(value: object) -> Parameter:
    """Without JAX's own classes of numbers, which print in their own way."""
    if type(value) is tuple:
        return tuple(map(_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return complex(value) if isinstance(value, complex) else value


def _comment(eqn: Eqn) -> str:
    """The user's line, if it is known, without folders of this machine: `  # file.py:12 (f)`."""
    path, *rest = source_line(eqn).split(":")
    place = ":".join([os.path.basename(path) if os.path.isabs(path) else path, *rest])
    return f"  # {place}" if place else ""


def _is_telling(value: object) -> bool:
    """Whether a parameter says something: no default, no object known by its address only."""
    if value is None or value is False or callable(value):
        return False
    if isinstance(value, tuple) and all(v is None or v is False for v in value):
        return False
    text = repr(value)
    return not any(part in text for part in ("\n", " at 0x", "Unspecified", "UNSPECIFIED"))


def _names() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)
