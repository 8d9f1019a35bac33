"""Passes of the user's own in the pipeline that lowers shard_mapped programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import shmap_passes
from shmap_passes import PASSES, Pass, PipelineError

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import OptionProblem, Problem, ShmapError

_DEFAULT_ANCHOR = "shmap-legalize-collectives"


@dataclass(frozen=True)
class AddedPass:
    """A pass, and the pass of the pipeline before or after which it runs."""

    element: Pass | str
    anchor: str
    is_after: bool


# Part of the keys of JAX's caches: a function that was jitted outside of `passes` is traced and
# lowered again inside.
_added: Any = jax.make_user_context(())


@contextlib.contextmanager
def passes(
    *added: Pass | str, before: str | None = None, after: str | None = None
) -> Iterator[None]:
    """Adds passes to the pipeline that lowers shard_mapped functions.

    They run on every shard_mapped function that is lowered inside this context, in this thread.
    Caches distinguish programs with different passes: what was compiled outside is compiled again
    inside, once. Contexts nest, and passes added at the same place run in the order in which they
    were added. A call outside of `jit` runs operation by operation; passes see the operations that
    it compiles for all devices, one at a time.

    Args:
      *added: Instances of subclasses of `shmap_passes.Pass`, frozen dataclasses whose fields can be
        hashed, or text for passes of MLIR and its dialects, as in "canonicalize".
      before: The name of the pass of the pipeline before which they run. By default they run where
        the module is last in body form, before "shmap-legalize-collectives".
      after: The name of the pass after which they run instead.

    Raises:
      ShmapError: Something is not a pass, or a name is unknown.

    Examples:
      >>> f = shard_map(jnp.sin, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> with passes("canonicalize", "cse", after="shmap-verify"):
      ...     lowered = f.lower(x)
      >>> [name for name, _ in lowered.passes][:4]
      ['body', 'shmap-verify', 'canonicalize', 'cse']
    """
    problems = [*_wrong_anchors(before, after), *(p for each in added for p in _wrong(each))]
    if problems:
        raise ShmapError(None, problems)
    anchor = before or after or _DEFAULT_ANCHOR
    elements = [element for each in added for element in _parsed(each)]
    new = (AddedPass(element, anchor, after is not None) for element in elements)
    with using((*added_passes(), *new)):
        yield


def added_passes() -> tuple[AddedPass, ...]:
    """The passes that this thread's contexts have added; a part of the keys of caches."""
    return cast("tuple[AddedPass, ...]", _added.value)


def using(added: tuple[AddedPass, ...]) -> contextlib.AbstractContextManager[None]:
    """A context in which these passes, and no others, are added."""
    return _added(added)


def with_added(pipeline: Sequence[Pass]) -> tuple[Pass | str, ...]:
    """The pipeline with the added passes in their places."""
    added = added_passes()
    if not added:
        return tuple(pipeline)
    elements: list[Pass | str] = []
    for pass_ in pipeline:
        here = [each for each in added if each.anchor == pass_.name]
        elements += [each.element for each in here if not each.is_after]
        elements.append(pass_)
        elements += [each.element for each in here if each.is_after]
    return tuple(elements)


def _parsed(element: Pass | str) -> tuple[Pass | str, ...]:
    if isinstance(element, Pass):
        return (element,)
    return shmap_passes.parse_pipeline(f"builtin.module({element})", PASSES)


def _wrong(element: object) -> Iterator[Problem]:
    where = "passes"
    if isinstance(element, str):
        try:
            shmap_passes.require_known(_parsed(element))
        except PipelineError as error:
            fix = "correct the text; `shmap-opt --list-passes` lists the passes of this project"
            yield OptionProblem(where, f"{element!r}: {error}", "a pass that exists", fix)
        return
    if isinstance(element, Pass):
        try:
            hash(element)
        except TypeError as error:
            fix = "use types that can be hashed for its options, such as tuples instead of lists"
            yield Problem(where, f"{type(element).__name__}: {error}", "a hashable pass", fix)
        return
    fix = "write the class as @dataclass(frozen=True) class MyPass(shmap_passes.Pass)"
    if isinstance(element, type) and issubclass(element, Pass):
        fix = f"write {element.__name__}()"
    yield Problem(where, show_value(element), "an instance of shmap_passes.Pass, or text", fix)


def _wrong_anchors(before: object, after: object) -> Iterator[Problem]:
    if before is not None and after is not None:
        found = f"before={before!r} and after={after!r}"
        yield OptionProblem("before, after", found, "one of the two", "omit one of them")
    names = [each.name for each in shmap_passes.pipeline()]
    for where, name in (("before", before), ("after", after)):
        if name is not None and name not in names:
            needed = f"a pass of the pipeline: {', '.join(names)}"
            yield OptionProblem(where, show_value(name), needed, "use one of these names")
