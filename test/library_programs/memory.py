"""What programs take of memory, and what they compute, once they are compiled."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import pytest
from compilers import fast_jit

from library_programs import collective_steps, local_steps, program
from library_programs.program import Program
from library_programs.run import mapped

# Matrices of 512 KiB: next to them, what XLA keeps of scalars is nothing.
SIZE = 256

# Bytes of temporaries that say nothing: XLA gives each scalar a buffer of its own, or none if it
# fuses what makes and reads it.
FREE = 512

_INSTRUCTION = re.compile(r"^ +(?:ROOT )?%[\w.-]+ = (\(.*?\)|\S+) ([\w-]+)\(", re.M)
_HEAVY = {"dot", "custom-call", "all-gather", "all-gather-start"}


@dataclass(frozen=True)
class Cost:
    """Of one device.

    Attributes:
      temporaries: in bytes.
      instructions: how often the program has each, by name and type.
    """

    temporaries: int
    instructions: Counter[tuple[str, str]]

    @property
    def large(self) -> Counter[tuple[str, str]]:
        """Those whose result is as large as a matrix."""
        found: Counter[tuple[str, str]] = Counter()
        for (name, type_), count in self.instructions.items():
            shapes = re.findall(r"\[([\d,]*)\]", type_)
            elements = sum(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes)
            if elements >= SIZE**2:
                found[name, type_] += count
        return found

    @property
    def heavy(self) -> Counter[str]:
        """Those that take long if they are computed again."""
        found: Counter[str] = Counter()
        for (name, _), count in self.instructions.items():
            if name in _HEAVY:
                found[name] += count
        return found

    def excess(self, other: Cost) -> str | None:
        """What is more than 10% above that of another program, or computed again; or None."""
        # With the same large arrays, XLA's schedule decides how many of them live at a time.
        is_larger = self.temporaries > 1.1 * other.temporaries + FREE
        if is_larger and self.large != other.large:
            return f"{self.temporaries} bytes of temporaries, beside {other.temporaries}"
        more = self.heavy - other.heavy
        return f"computed again: {dict(more)}" if more else None


def cost(drawn: Program, shard_map: Any, **options: Any) -> Cost:
    """That of a drawn program with large arrays, by a `shard_map`. It is not run."""
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        for module in (program, collective_steps, local_steps):
            patch.setattr(module, "SIZE", SIZE)
        patch.setattr(program, "SHAPES", {"s": (), "v": (SIZE,), "m": (SIZE, SIZE)})
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in drawn.arrays()]
        function = fast_jit(mapped(drawn, shard_map, **options))
        compiled = function.lower(*types).compile()
    return Cost(
        compiled.memory_analysis().temp_size_in_bytes,
        Counter((name, type_) for type_, name in _INSTRUCTION.findall(compiled.as_text())),
    )
