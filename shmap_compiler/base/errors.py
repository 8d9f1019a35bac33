"""Errors of the front end: who, where, found, needed, what to do; all mistakes at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar

from shmap_passes import reference

_MOST_SHOWN = 20
"""Messages leave out further problems."""


@dataclass(frozen=True)
class Problem:
    """One mistake: the four parts of a message after the name of the user's function.

    Attributes:
      where: What is wrong: `args[0]['w']`, `in_specs[0]`, an operation and its line.
      found: What it is.
      needed: What it should be, with the arithmetic.
      fix: What to do.

    Examples:
      >>> print(Problem("in_specs[0]", "axis 'k'", "an axis of the mesh", "use 'i'"))
      in_specs[0]
          found:  axis 'k'
          needed: an axis of the mesh
          fix:    use 'i'
    """

    where: str
    found: str
    needed: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.where}\n    found:  {self.found}\n    needed: {self.needed}\n"
            f"    fix:    {self.fix}"
        )


class TypeProblem(Problem):
    """A mistake in the type of an argument, rather than in its value."""


class OptionProblem(Problem):
    """A mistake in what is asked for, such as a target or a stage, rather than in the program."""


class PlatformProblem(Problem):
    """What JAX cannot lower for one platform, but perhaps for another."""


class ProgramName(str):
    """The name of a program that is not a function, such as the file of a module."""


_front_end: ContextVar[str] = ContextVar("front_end", default="shard_map")


@contextlib.contextmanager
def errors_of(front_end: str) -> Iterator[None]:
    """Errors raised inside this context begin with the name of what the user called."""
    token = _front_end.set(front_end)
    try:
        yield
    finally:
        _front_end.reset(token)


class ShmapError(Exception):
    """The base class of all errors of this package.

    Attributes:
      who: The user's function and its line; None if there is none.
      problems: Every mistake found in the call, each a `Problem`.
      code: A code that is stable between versions. It ends the message, with the section of the
        documentation that describes it.

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("k"), out_specs=P("l"))
      >>> try:
      ...     f.trace(x)
      ... except ShmapError as error:
      ...     print([problem.found for problem in error.problems], error.code)
      ["axis 'k'", "axis 'l'"] SHM-E101
    """

    code: ClassVar[str] = "SHM-E001"

    def __init__(self, who: str | None, problems: Sequence[Problem]):
        """`who` is the user's function, as `describe` names it; None if there is no function.

        It may begin with the front end that maps the function, as in "xmap of `f`". A `ProgramName`
        is not a function, so no front end is named.
        """
        self.who = who
        self.problems = tuple(problems)
        shown = list(map(str, self.problems[:_MOST_SHOWN]))
        if len(self.problems) > _MOST_SHOWN:
            shown.append(f"and {len(self.problems) - _MOST_SHOWN} more")
        if who is None:
            lines = [*shown, reference(self.code)]
        else:
            count = "" if len(self.problems) == 1 else f" ({len(self.problems)} problems)"
            is_whole = " of `" in who or isinstance(who, ProgramName)
            mapped = who if is_whole else f"{_front_end.get()} of {who}"
            lines = [f"{mapped}{count}:", *(f"  {problem}" for problem in shown)]
            lines.append(f"  {reference(self.code)}")
        super().__init__("\n".join(lines))

    def __reduce__(self):
        # The message names the front end of where it was made, so it is kept as it is.
        return _without_init, (type(self), self.args), vars(self)


def _without_init(cls: type[ShmapError], args: tuple[str, ...]) -> ShmapError:
    """An error whose message is given: what pickle and copy call."""
    return cls.__new__(cls, *args)


class SpecError(ShmapError, ValueError):
    """The mesh, the specs, and the arguments or results do not fit together.

    Examples:
      >>> try:
      ...     shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i")).trace(x[:6])
      ... except SpecError as error:
      ...     print(error.problems[0].needed)
      a multiple of 8, the size of axis 'i': 8 does not divide 6
    """

    code = "SHM-E101"


class SpecTypeError(SpecError, TypeError):
    """A mesh, a spec or the name of an axis has the wrong type.

    Examples:
      >>> try:
      ...     shard_map(jnp.sin, mesh=(8,), in_specs=P("i"), out_specs=P("i")).trace(x)
      ... except SpecTypeError as error:
      ...     print(error.problems[0].needed)
      a jax.sharding.Mesh or AbstractMesh
    """

    code = "SHM-E102"


class BodyError(ShmapError, ValueError):
    """The function uses a collective in an invalid way.

    Examples:
      >>> def f(block):
      ...     return lax.ppermute(block, "i", [(0, 1), (0, 2)])
      >>> try:
      ...     shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")).trace(x)
      ... except BodyError as error:
      ...     print(error.problems[0].needed)
      each device at most once as source
    """

    code = "SHM-E201"


class ArgumentTypeError(BodyError, TypeError):
    """An argument of a collective has the wrong type.

    Examples:
      >>> try:
      ...     assume_replicated("text", "i")
      ... except ArgumentTypeError as error:
      ...     print(error.problems[0].needed)
      an array, or a pytree of arrays
    """

    code = "SHM-E206"


class UnknownAxisError(BodyError, NameError):
    """The function names a mesh axis that does not exist or is not manual.

    Examples:
      >>> def f(block):
      ...     return lax.psum(block, "k")
      >>> try:
      ...     shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P()).trace(x)
      ... except UnknownAxisError as error:
      ...     print(error.problems[0].found)
      axis 'k'
    """

    code = "SHM-E202"


class UnreducedError(BodyError, NotImplementedError):
    """The function applies an operation to unreduced values that is only valid on their sum.

    Examples:
      >>> def f(block):
      ...     summands = lax.pcast(block, "i", to="unreduced")
      ...     return lax.psum(summands * summands, "i")  # not the product of the sums
      >>> try:
      ...     shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P()).trace(x)
      ... except UnreducedError as error:
      ...     print(error.code)
      SHM-E207
    """

    code = "SHM-E207"


class DerivativeError(BodyError, NotImplementedError):
    """A StableHLO operation that the function calls has no known derivative.

    Examples:
      >>> text = '''
      ... func.func @main(%x: tensor<f32>) -> tensor<f32> {
      ...   %y = stablehlo.custom_call @mine(%x) : (tensor<f32>) -> tensor<f32>
      ...   return %y : tensor<f32>
      ... }
      ... '''
      >>> try:
      ...     jax.eval_shape(jax.grad(lambda x: call_stablehlo(text, x)), 2.0)
      ... except DerivativeError as error:
      ...     print(error.problems[0].found)
      stablehlo.custom_call @mine, which has no derivative that is known
    """

    code = "SHM-E208"


class HangError(BodyError):
    """A collective could deadlock, because some devices would not reach it.

    Examples:
      >>> def f(block):
      ...     return lax.cond(block[0] > 3, lambda b: lax.psum(b, "i"), lambda b: b, block)
      >>> try:
      ...     shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")).trace(x)
      ... except HangError as error:
      ...     print(error.problems[0].where)
      psum over 'i' at ...
    """

    code = "SHM-E203"


class ReplicationError(ShmapError, ValueError):
    """A result may differ between devices along an axis that its spec does not mention.

    Examples:
      >>> try:
      ...     shard_map(jnp.sum, mesh=mesh, in_specs=P("i"), out_specs=P()).trace(x)
      ... except ReplicationError as error:
      ...     print(error.problems[0].found)
      a result f32[] that varies along axis 'i'...
    """

    code = "SHM-E204"


class ResultTypeError(ShmapError, TypeError):
    """The function returned something that is not an array.

    Examples:
      >>> def f(block):
      ...     return "text"
      >>> try:
      ...     shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P()).trace(x)
      ... except ResultTypeError as error:
      ...     print(error.problems[0].needed)
      an array, or a pytree of arrays...
    """

    code = "SHM-E205"


class VaryingValueError(ShmapError, TypeError):
    """In an eager call, Python needs one value where devices have different ones.

    Examples:
      >>> def f(block):
      ...     return block if block[0] > 3 else -block
      >>> try:
      ...     shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))(x)
      ... except VaryingValueError as error:
      ...     print(error.code)
      SHM-E301
    """

    code = "SHM-E301"


class TargetError(ShmapError, ValueError):
    """Devices, a target or an executable cannot be used as requested.

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> try:
      ...     f.lower(x).compile("cpu:4")
      ... except TargetError as error:
      ...     print(error.problems[0].found)
      8 = 8 devices in the mesh
    """

    code = "SHM-E401"


class TargetTypeError(TargetError, TypeError):
    """An executable is called with other arguments than it was compiled for.

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> executable = f.lower(x).compile()
      >>> try:
      ...     executable(x.astype(int))
      ... except TargetTypeError as error:
      ...     print(error.problems[0].needed)
      f32[16], for which this executable was compiled
    """

    code = "SHM-E402"


class ArtifactError(ShmapError, ValueError):
    """A program cannot be saved, or a file does not contain one that can be loaded here.

    Examples:
      >>> try:
      ...     load("no-such-file.bin")
      ... except ArtifactError as error:
      ...     print(error.problems[0].found)
      No such file or directory
    """

    code = "SHM-E501"


class SimulationError(ShmapError, ValueError):
    """A program cannot be simulated, or has no results because its devices deadlock.

    Examples:
      >>> def f(block):
      ...     jax.debug.print("{}", block)
      ...     return block
      >>> lowered = shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")).lower(x)
      >>> try:
      ...     lowered.simulate(x)
      ... except SimulationError as error:
      ...     print(error.problems[0].found)
      a call back into Python, whose function the module does not contain
    """

    code = "SHM-E601"


class UnjitError(ShmapError, ValueError):
    """A jitted program cannot be brought back to source.

    Examples:
      >>> try:
      ...     unjit(jax.jit(jnp.sin), jnp.ones(16))  # one device: nothing was partitioned
      ... except UnjitError as error:
      ...     print(error.problems[0].found)
      a program for one device
    """

    code = "SHM-E701"


def spec_error(who: str, problems: Sequence[Problem]) -> SpecError:
    """The error for mesh and specs that do not fit: a TypeError if all mistakes are about types."""
    only_types = all(isinstance(problem, TypeProblem) for problem in problems)
    return (SpecTypeError if only_types else SpecError)(who, problems)


def body_error(who: str, problems: Sequence[Problem]) -> BodyError:
    """The error for mistakes in using collectives: a TypeError if they are all about types."""
    only_types = all(isinstance(problem, TypeProblem) for problem in problems)
    return (ArgumentTypeError if only_types else BodyError)(who, problems)
