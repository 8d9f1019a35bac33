"""Random programs for `overlap.py --random`: none may be slower than it is without overlap.

Sizes are from tiny to large, types bf16 and f32, groups of 2 to 64 devices; all patterns, their
gradients, and programs with nothing to overlap.
"""

import random
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import Target, shard_map

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
GROUPS = (2, 4, 8, 8, 8, 16, 32, 64)
SLOWER = 0.01
"""A program may be slower by this share."""
LARGEST = 2**31
"""No array has more bytes."""


@dataclass(frozen=True)
class Drawn:
    """A program, the size of its group, and the types of its arguments on all devices."""

    name: str
    count: int
    types: tuple

    def __str__(self):
        sizes = " ".join(f"{t.dtype.name}[{','.join(map(str, t.shape))}]" for t in self.types)
        return f"{self.name} on {self.count}: {sizes}"


def shapes(name, count, draw):
    """Global shapes of the arguments of a program of overlap.py."""
    rows, inner, columns = (count * draw(), draw(), draw())
    kind = name.removesuffix("'")
    if kind == "a":
        return (rows, inner), (inner, columns)
    if kind == "b":
        return (rows, count * inner), (count * inner, columns)
    if kind in ("c", "d"):
        return (rows, count * inner), (count * inner, columns)
    if kind == "e":
        return (rows, inner), (inner, count * columns), (count * columns, inner)
    if kind == "f":
        return (count, rows, inner), (count, inner, columns), (count, columns, inner)
    if kind == "g":
        width = count * max(1, inner // count)
        return (rows, width), (draw.steps(), width, width)
    return (rows, inner), (inner, columns)


class Draw:
    def __init__(self, seed):
        self._random = random.Random(seed)

    def __call__(self):
        return self._random.choice(SIZES)

    def steps(self):
        return self._random.choice((2, 3, 4, 8, 17, 24))

    def program(self, names):
        while True:
            name, count = self._random.choice(names), self._random.choice(GROUPS)
            dtype = self._random.choice((jnp.bfloat16, jnp.float32))
            types = tuple(jax.ShapeDtypeStruct(s, dtype) for s in shapes(name, count, self))
            if all(t.size * t.dtype.itemsize <= LARGEST for t in types):
                return Drawn(name, count, types)


def target_of(text, count):
    """`gpu:h100` for a number of devices."""
    if not text.startswith("gpu:"):
        raise SystemExit(f"--random: no rows for {text!r}; write e.g. gpu:h100")
    kind = ":".join(text.split(":")[:2])
    return Target.parse(f"{kind}:{count}" if count <= 8 else f"{kind}:{count // 8}x8")


def lowered(program, bodies, mode):
    body, in_specs, out_specs = bodies[program.name]
    mesh = AbstractMesh((program.count,), ("i",))
    mapped = shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return mapped.lower(*program.types, overlap=mode)


def nothing(x, w):
    """A program without communication."""
    return jnp.tanh(x @ w)


NOTHING = (nothing, (P("i", None), P()), P("i", None))


def run(bodies, count, seed, target, mode, seconds):
    """Compiles programs as they are and in a mode; returns how many are slower.

    Args:
      bodies: (function, specs of the arguments, of the results) by name.
      seconds: the modelled time of a lowered program on a target.
    """
    bodies = {**bodies, "none": NOTHING}
    draw, slower, changed, gains = Draw(seed), 0, 0, []
    for number in range(count):
        program = draw.program(list(bodies))
        on = target_of(target, program.count)
        overlapped = lowered(program, bodies, mode)
        forms = [choice.form for choice in overlapped.overlap_report(on).choices if choice.form]
        if not forms:
            continue
        changed += 1
        plain = seconds(lowered(program, bodies, "off"), on)
        share = seconds(overlapped, on) / plain
        gains.append(1 - share)
        if share > 1 + SLOWER:
            slower += 1
        print(f"{number}: {100 * (1 - share):+.1f}% {' '.join(forms)}, {program}", flush=True)
    mean = 100 * sum(gains) / max(1, len(gains))
    print(
        f"{count} programs, seed {seed}, {target}, {mode}: {changed} changed, on average by "
        f"{mean:.0f}%, {slower} slower by more than {SLOWER:.0%}"
    )
    return slower
