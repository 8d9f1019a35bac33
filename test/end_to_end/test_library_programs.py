"""Random programs of library calls equal nested `jax.vmap` in float64, under transformations.

Some are called directly, outside of `jax.jit`.

Those with `jax.checkpoint` in or around the body take no more memory than with `jax.shard_map`, and
compute no more again.

A short run is part of `make test`, and one of 250 programs is `make test-random`; both take the
same programs every time. A long run takes new programs, as many as it is told:

    SHMAP_LIBRARY_EXAMPLES=20000 pytest -n auto test/end_to_end/test_library_programs.py

Its header prints the seed, and SHMAP_PROPERTY_SEED repeats the run. A failure prints the program,
reduced to the result that differs, and the call that draws it.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest
from library_programs import draw_program
from library_programs.memory import cost
from library_programs.program import Body, Program
from library_programs.run import difference, difference_directly, runs_nowhere

from shmap_compiler import shard_map

EXAMPLES = int(os.environ.get("SHMAP_LIBRARY_EXAMPLES", "30"))
CHECKPOINTED = max(10, EXAMPLES // 20)
DIRECT = max(4, EXAMPLES // 25)
SEED = int(os.environ["SHMAP_PROPERTY_SEED"])
BATCH = 10  # programs of one test

Comparison = Callable[[Program, Any], str | None]


def complaint(program: Program, compare: Comparison = difference) -> str | None:
    """What is wrong with one program, which may be refused."""
    try:
        return compare(program, shard_map)
    except Exception as error:
        if runs_nowhere(program, error):
            return None
        return f"{type(error).__name__}: {error}"


def reduced(program: Program) -> Program:
    """One result of the program that is wrong by itself, if there is one."""
    smaller = [program.only(number) for number in range(len(program.out_specs))]
    return next((p for p in smaller if complaint(p)), program)


def lines(body: Body, indent: str = "  "):
    for number, step in enumerate(body.steps, len(body.inputs)):
        params = {k: v for k, v in step.params.items() if not isinstance(v, Body)}
        operands = ", ".join(f"%{n}" for n in step.operands)
        yield f"{indent}%{number} = {step.name}({operands}) {params or ''}"
        for inner in step.bodies:
            yield from lines(inner, indent + "    ")
    yield f"{indent}results {', '.join(f'%{n}' for n in body.results)}"


def shown(program: Program) -> str:
    arguments = [f"  %{n}: {a.kind} {a.spec}" for n, a in enumerate(program.arguments)]
    head = f"{program.transformation} on {program.axes}, manual {program.manual}"
    return "\n".join([head, *arguments, *lines(program.body), f"  out_specs {program.out_specs}"])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_random_library_program_equals_nested_vmap(announce, first):
    numbers = range(first, min(first + BATCH, EXAMPLES))
    for number in numbers:
        program = draw_program(number, SEED)
        announce(program)
        found = complaint(program)
        if found:
            smaller = reduced(program)
            raise AssertionError(
                f"draw_program({number}, {SEED}): {complaint(smaller)}\n{shown(smaller)}"
            )


@pytest.mark.parametrize("number", range(DIRECT))
def test_random_library_program_called_directly(announce, number):
    """The code of all programs is the same, and some of them take derivatives inside."""
    transformation = ("none", "grad", "none", "jvp", "vmap", "linearized")[number % 6]
    program = draw_program(number, SEED, transformation)
    announce(program)
    found = complaint(program, difference_directly)
    called = f"draw_program({number}, {SEED}, {transformation!r})"
    assert found is None, f"{called}: {found}\n{shown(program)}"


# ---------------------------------------------------------------------------------- checkpoint


def with_checkpoint() -> Iterator[int]:
    """The numbers of programs that mention `jax.checkpoint`."""
    return (n for n in itertools.count() if "checkpoint" in repr(draw_program(n, SEED)))


def costs(program: Program):
    """Those of ours and of `jax.shard_map`; None if JAX has none.

    Both with check_vma, or both without: it decides where gradients are summed.
    """
    for check_vma in (True, False):
        try:
            jaxs = cost(program, jax.shard_map, check_vma=check_vma)
        except Exception:  # JAX's typing refuses most programs
            continue
        return cost(program, shard_map, check_vma=check_vma), jaxs
    return None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, CHECKPOINTED, BATCH))
def test_checkpoint_takes_no_more_memory_than_with_jax(announce, first):
    numbers = itertools.islice(with_checkpoint(), first, first + min(BATCH, CHECKPOINTED))
    compared = 0
    for number in numbers:
        program = draw_program(number, SEED)
        announce(program)
        if (found := costs(program)) is None:
            continue
        compared += 1
        ours, jaxs = found
        excess = ours.excess(jaxs)
        assert excess is None, f"draw_program({number}, {SEED}): {excess}\n{shown(program)}"
    assert compared
