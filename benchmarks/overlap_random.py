"""Random programs for `overlap.py --random`: none may be slower than it is without overlap.

Sizes are from tiny to large, types bf16 and f32, groups of 2 to 64 devices; all patterns, their
gradients, and programs with nothing to overlap. On TPUs the group is either the whole slice or an
axis of a mesh of two; on GPUs it is the whole target. Only programs that the rule changes are
compiled.
"""

import functools
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import ShmapError, Target, shard_map

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
GROUPS = (2, 4, 8, 8, 8, 16, 32, 64)
SLOWER = 0.01
"""A program may be slower by this share."""
LARGER = 1.02
"""What `measure` allows of memory in all, relative to that of the plain program."""
LARGEST = 2**31
"""No array has more bytes."""
SLICES = {4: ("2x2", "2x2x1"), 8: ("2x4", "2x2x2"), 16: ("4x4", "2x2x4")}
SLICES |= {32: ("4x8", "2x4x4"), 64: ("8x8", "4x4x4")}
"""Of TPUs with a torus of two and of three dimensions, by the number of chips."""


@dataclass(frozen=True)
class Drawn:
    """A program, the size of its group, and the types of its arguments.

    Attributes:
      types: of the arguments on all devices of the group.
      others: the size of the other axis of the mesh, along which all arguments are replicated.
    """

    name: str
    count: int
    types: tuple
    others: int = 1

    def __str__(self):
        sizes = " ".join(f"{t.dtype.name}[{','.join(map(str, t.shape))}]" for t in self.types)
        groups = f"{self.others} groups of {self.count}" if self.others > 1 else self.count
        return f"{self.name} on {groups}: {sizes}"


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


def with_shapes(bodies):
    """Programs of overlap.py, (function, specs of arguments, of results), for `Draw.program`."""
    return {name: (*body, functools.partial(shapes, name)) for name, body in bodies.items()}


class Draw:
    def __init__(self, seed):
        self._random = random.Random(seed)

    def __call__(self):
        return self._random.choice(SIZES)

    def steps(self):
        return self._random.choice((2, 3, 4, 8, 17, 24))

    def of(self, choices):
        return self._random.choice(choices)

    def program(self, bodies, on_tpu):
        """A program.

        Args:
          bodies: by name, (function, specs of the arguments, of the results, what draws the global
            shapes of the arguments from the size of a group and this).
        """
        names = list(bodies)
        while True:
            name, count = self._random.choice(names), self._random.choice(GROUPS)
            dtype = self._random.choice((jnp.bfloat16, jnp.float32))
            shapes_of = bodies[name][3]
            types = tuple(jax.ShapeDtypeStruct(s, dtype) for s in shapes_of(count, self))
            others = self._others(count) if on_tpu else 1
            if all(t.size * t.dtype.itemsize <= LARGEST for t in types):
                return Drawn(name, count, types, others)

    def _others(self, count):
        """So that all of a slice are used; no slice has two chips."""
        most = {2: (2, 4), 4: (1, 2, 4), 8: (1, 1, 2)}
        return self._random.choice(most.get(count, (1,)))


def target_of(text, count):
    """`gpu:h100` or `tpu:v5e`, for a number of devices."""
    kind, _, model = text.partition(":")
    if kind == "tpu" and model in ("v5e", "v6e", "v5p"):
        return Target.parse(f"{text}:{SLICES[count][model == 'v5p']}")
    if kind == "gpu" and ":" not in model:
        return Target.parse(f"{text}:{count}" if count <= 8 else f"{text}:{count // 8}x8")
    raise SystemExit(f"--random: no rows for {text!r}; write tpu:v5e, tpu:v6e, tpu:v5p or gpu:h100")


def lowered(program, bodies, mode):
    body, in_specs, out_specs, _ = bodies[program.name]
    mesh = AbstractMesh((program.others, program.count), ("o", "i"))
    if program.others == 1:
        mesh = AbstractMesh((program.count,), ("i",))
    mapped = shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return mapped.lower(*program.types, overlap=mode, overlap_rounding=True)


def nothing(x, w):
    """A program without communication."""
    return jnp.tanh(x @ w)


NOTHING = (nothing, (P("i", None), P()), P("i", None))


@dataclass
class Outcome:
    """What became of a program.

    Attributes:
      forms: that were chosen; none if the program stays as it is.
      plain, overlapped: seconds, MiB of temporaries, and MiB in all; None if not compiled.
      problem: why it was not compiled.
    """

    number: int
    program: str
    forms: str = ""
    plain: tuple[float, float, float] | None = None
    overlapped: tuple[float, float, float] | None = None
    expected: float | None = None
    problem: str = ""

    @property
    def gain(self):
        """The share of the plain time that is saved."""
        if self.plain is None or self.overlapped is None:
            return None
        return 1 - self.overlapped[0] / self.plain[0]

    def __str__(self):
        if self.gain is None:
            return f"{self.number}: {self.problem}, {self.program}"
        memory = f"{self.plain[1]:.0f} -> {self.overlapped[1]:.0f} MiB"
        expected = f" ({100 * (1 - self.expected):+.1f}% expected)" if self.expected else ""
        gain = f"{100 * self.gain:+.1f}%{expected}"
        return f"{self.number}: {gain} {self.forms}, {memory}, {self.program}"


def outcome(number, program, bodies, on, mode, measure):
    """Compiles a program as it is and in a mode, if the mode changes it."""
    found = Outcome(number, str(program))
    overlapped = lowered(program, bodies, mode)
    chosen = [choice for choice in overlapped.overlap_report(on).choices if choice.form]
    if not chosen:
        return found
    found.forms = " ".join(choice.form for choice in chosen)
    if all(choice.plain_seconds and choice.expected_seconds for choice in chosen):
        plain = sum(choice.plain_seconds for choice in chosen)
        found.expected = sum(choice.expected_seconds for choice in chosen) / plain
    try:
        found.plain = measure(lowered(program, bodies, "off"), on)
        found.overlapped = measure(overlapped, on)
    except ShmapError as error:
        which = "plain" if found.plain is None else "overlapped"
        found.problem = f"{which} does not compile: {str(error)[:200]!r}"
    return found


class Record:
    """Outcomes in a file, one a line, so that a run can be continued."""

    def __init__(self, path):
        self._path = Path(path) if path else None
        self.known = {}
        for line in self._path.read_text().splitlines() if path and self._path.exists() else ():
            each = Outcome(**json.loads(line))
            self.known[each.number] = each

    def add(self, each):
        """Writes an outcome; the last one of a number counts."""
        self.known[each.number] = each
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(asdict(each)) + "\n")


def run(bodies, count, seed, target, mode, measure, record=None):
    """Compiles programs as they are and in a mode; returns how many are slower.

    Args:
      bodies: by name; see `Draw.program`.
      measure: (modelled seconds, MiB of temporaries, MiB in all) of a lowered program on a target.
      record: a file of outcomes; programs in it are not compiled again.
    """
    draw, outcomes = Draw(seed), Record(record)
    for number in range(count):
        program = draw.program(bodies, target.startswith("tpu:"))
        if number in outcomes.known:
            continue
        # If the compiler aborts this process, the next run goes on after this program.
        outcomes.add(Outcome(number, str(program), problem="aborted"))
        on = target_of(target, program.count * program.others)
        found = outcome(number, program, bodies, on, mode, measure)
        outcomes.add(found)
        if found.forms:
            print(found, flush=True)
    return summarize([outcomes.known[k] for k in range(count)], f"seed {seed}, {target}, {mode}")


def summarize(outcomes, title):
    """Prints how many programs became faster, and returns how many slower."""
    changed = [each for each in outcomes if each.gain is not None]
    slower = [each for each in changed if each.gain < -SLOWER]
    gains = sorted(each.gain for each in changed)
    larger = [each for each in changed if each.overlapped[2] > LARGER * each.plain[2]]
    unknown = [each for each in outcomes if each.problem]
    print(f"{len(outcomes)} programs, {title}: {len(changed)} changed", end="")
    if changed:
        print(f", by {100 * gains[0]:.0f}% to {100 * gains[-1]:.0f}%", end="")
        print(f" and {100 * sum(gains) / len(gains):.0f}% on average", end="")
    print(
        f"; {len(slower)} slower by more than {SLOWER:.0%}; {len(larger)} need over 2% more memory"
    )
    print(*(f"not compiled: {each}" for each in unknown), sep="\n", end="\n" * bool(unknown))
    return len(slower)
