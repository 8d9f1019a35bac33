"""A function and how it is mapped over a mesh: the data of `shard_map`, without what it does."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from shmap_compiler.base.caches import Cache
from shmap_compiler.base.jax_compat import AnyMesh
from shmap_compiler.base.untyped import Function, PyTree, Setting
from shmap_compiler.graph.graph import HangCheck
from shmap_compiler.records.traced_call import TracedCall


@dataclass(eq=False, repr=False)
class MappedFunction:
    """The arguments of `shard_map`.

    Attributes:
      fun: the per-device function.
      axis_names: the axes over which it is per-device; empty for all.
      calls: those that have been traced, by the types of their arguments.
    """

    fun: Function
    mesh: AnyMesh | None
    in_specs: PyTree
    out_specs: PyTree
    axis_names: frozenset[str] = frozenset()
    check_vma: bool = True
    check_hangs: bool = True
    calls: Cache[TracedCall] = field(default_factory=lambda: Cache(maxsize=64), init=False)

    @property
    def hang_check(self) -> HangCheck:
        """Which of the collectives that could deadlock are rejected."""
        return HangCheck.ALL if self.check_hangs else HangCheck.NONE

    @property
    def moves_arguments(self) -> bool:
        """Whether arguments that are committed to other devices are moved, not refused."""
        return False

    @property
    def options(self) -> dict[str, Setting]:
        """The arguments besides the function, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init and f.name != "fun"}
