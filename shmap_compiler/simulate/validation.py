"""Compares a program after each pass with the program before it, XLA's result and a reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shmap_compiler.base.text_tables import show_seconds, table
from shmap_compiler.lowering.snapshots import ModuleState
from shmap_compiler.records.signature import Signature
from shmap_compiler.simulate import agreement
from shmap_compiler.simulate.arguments import flat_inputs
from shmap_compiler.simulate.places import SourcePlace
from shmap_compiler.simulate.simulation import (
    Simulation,
    checked_inputs,
    playable,
    run,
    simulate_module,
)
from shmap_compiler.simulate.trace_values import ValueTrace, distance, first_difference

XLA, REFERENCE = "XLA", "reference"
"""The names of what the last module is compared with."""


@dataclass(frozen=True)
class Difference:
    """Where results differ.

    Attributes:
      seed: of the arguments.
      what: a result, as in "result['w']"; or that devices deadlock.
      device: the first device whose block of it differs; None where full arrays are compared.
      place: the first operation that makes other values than before; None if none was found.
    """

    seed: int
    what: str
    device: int | None
    place: SourcePlace | None

    def __str__(self) -> str:
        device = "" if self.device is None else f" on device {self.device}"
        place = "" if self.place is None else f"; the first to differ is {self.place}"
        return f"{self.what}{device}, seed {self.seed}{place}"


@dataclass(frozen=True)
class Check:
    """The comparison of one module.

    Attributes:
      name: The pass, "XLA" or "reference".
      bitwise: Whether equal bits are required.
      relative: The largest difference, in units of the largest magnitude of a result.
      exchanges: How many collectives the groups of devices complete; None for "XLA", "reference".
      seconds: How long the simulation took.
      difference: What differs by more than is allowed, or None.
    """

    name: str
    bitwise: bool
    relative: float
    exchanges: int | None
    seconds: float
    difference: Difference | None


@dataclass(frozen=True)
class Validation:
    """The comparison of a program with itself after every pass. Its text is a table.

    Made by `Lowered.validate`.

    Attributes:
      who: The program.
      checks: One for each pass, then one for XLA's result and one for the reference, if compared.

    Examples:
      >>> f = shard_map(lambda b: lax.psum(b, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
      >>> validation = f.lower(x).validate(x, reference=lambda x: x.reshape(8, 2).sum(0))
      >>> [check.name for check in validation.checks][-2:]
      ['XLA', 'reference']
      >>> validation.holds, validation.first_difference
      (True, None)
    """

    who: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing differs by more than is allowed."""
        return self.first_difference is None

    @property
    def first_difference(self) -> Check | None:
        """The first check that fails."""
        return next((check for check in self.checks if check.difference is not None), None)

    def __str__(self) -> str:
        rows = [
            (
                check.name,
                _count(check.exchanges),
                "bitwise" if check.bitwise else "rounding",
                "equal" if check.relative == 0 else f"{check.relative:.1e}",
                show_seconds(check.seconds),
                "" if check.difference is None else f"DIFFERS: {check.difference}",
            )
            for check in self.checks
        ]
        header = ("after", "exchanges", "allowed", "difference", "time", "")
        failed = self.first_difference
        last = "PASS: all equal" if failed is None else f"FAIL: {failed.name} differs"
        return f"{self.who}, validated\n\n{table(header, rows)}\n\n{last}"


def _count(exchanges: int | None) -> str:
    return "" if exchanges is None else str(exchanges)


def validate(
    signature: Signature,
    stages: Sequence[ModuleState],
    args: Sequence[Any],
    compiled: Callable[..., Any] | None,
    reference: Callable[..., Any] | None,
    seeds: int,
) -> Validation:
    """Compares the modules of a program with each other and with what XLA and a reference compute.

    Raises:
      SimulationError: the arguments are not those of the program, or it cannot be simulated.
    """
    merged: dict[str, Check] = {}
    for seed in range(seeds):
        given = args if seed == 0 else randomized(args, seed)
        for name, check in _checks(signature, stages, given, compiled, reference, seed):
            old = merged.get(name)
            merged[name] = check if old is None else _worse(old, check)
    return Validation(signature.who, tuple(merged.values()))


def _worse(old: Check, new: Check) -> Check:
    return Check(
        old.name,
        old.bitwise,
        max(old.relative, new.relative),
        old.exchanges,
        old.seconds + new.seconds,
        old.difference or new.difference,
    )


def randomized(args: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """The arguments with random numbers in place of arrays of floats and complex numbers."""
    rng = np.random.default_rng(seed)

    def one(leaf: Any) -> Any:
        if (
            not hasattr(leaf, "dtype")
            or not leaf.shape
            or not jnp.issubdtype(leaf.dtype, jnp.inexact)
        ):
            return leaf
        values = rng.standard_normal(leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            values = values + 1j * rng.standard_normal(leaf.shape)
        return values.astype(leaf.dtype)

    return jax.tree.map(one, tuple(args))


def _checks(
    signature: Signature,
    stages: Sequence[ModuleState],
    args: Sequence[Any],
    compiled: Callable[..., Any] | None,
    reference: Callable[..., Any] | None,
    seed: int,
) -> Iterator[tuple[str, Check]]:
    """(a unique name, the check) of each stage; a pass may run several times."""
    inputs, axes = flat_inputs(signature, args), dict(signature.mesh.shape)
    before: ModuleState | None = None
    last: Simulation | None = None
    for number, stage in enumerate(stages):
        start = time.perf_counter()
        if last is not None and before is not None and stage.text == before.text:
            now = last
        else:
            now = simulate_module(
                stage.text, inputs, axes=axes, who=signature.who, out_tree=signature.out_tree
            )
        seconds = time.perf_counter() - start
        relative, difference = 0.0, None
        if last is not None and before is not None and now is not last:
            relative, difference = _compare(signature, before, stage, inputs, seed, last, now)
        check = Check(
            stage.name, stage.keeps_bits, relative, len(now.exchanges), seconds, difference
        )
        yield f"{number} {stage.name}", check
        before, last = stage, now
    if last is None or last.hang is not None:
        return
    for name, function in ((XLA, compiled), (REFERENCE, reference)):
        if function is not None:
            yield name, _against(name, function, args, last, seed)


def _compare(
    signature: Signature,
    before: ModuleState,
    stage: ModuleState,
    inputs: Sequence[Any],
    seed: int,
    last: Simulation,
    now: Simulation,
) -> tuple[float, Difference | None]:
    if (last.hang is None) != (now.hang is None):
        what = "the devices deadlock" if now.hang else "the devices do not deadlock any more"
        hang = now.hang or last.hang
        assert hang is not None, "one of the two has one"
        first = next(p for p in hang.positions if p.place is not None)
        return np.inf, Difference(seed, what, first.device, first.place)
    relative, where = 0.0, None
    for path, ours, theirs in zip(_paths(signature), now.blocks, last.blocks, strict=False):
        for device, (block, expected) in enumerate(zip(ours, theirs, strict=True)):
            apart = distance(block, expected)
            relative = max(relative, apart)
            if where is None and apart > _allowed(stage, block):
                where = path, device
    if where is None:
        return relative, None
    axes = dict(signature.mesh.shape)
    place = first_line(before.text, stage.text, inputs, axes, signature.who, stage.keeps_bits)
    return relative, Difference(seed, where[0], where[1], place)


def _allowed(stage: ModuleState, block: np.ndarray) -> float:
    return 0.0 if stage.keeps_bits else agreement.default_tolerance(block.dtype)


def first_line(
    before: str,
    after: str,
    inputs: Sequence[Any],
    axes: Mapping[str, int],
    who: str,
    bitwise: bool = True,
) -> SourcePlace | None:
    """The first operation of the module `after` that makes other values than in `before`."""
    traces = []
    for text in (before, after):
        program = playable(text, axes, who, every_op=True)
        trace = ValueTrace()
        run(program, checked_inputs(program, inputs, who), who, trace.see)
        traces.append(trace)
    tolerance = None if bitwise else agreement.default_tolerance(np.dtype(np.float32))
    found = first_difference(traces[0], traces[1], tolerance)
    return None if found is None else found.place


def _paths(signature: Signature) -> list[str]:
    numbered = jax.tree.unflatten(signature.out_tree, range(signature.out_tree.num_leaves))
    pairs = jax.tree_util.tree_leaves_with_path(numbered)
    return [f"result{jax.tree_util.keystr(path)}" for path, _ in pairs]


def _against(
    name: str, function: Callable[..., Any], args: Sequence[Any], last: Simulation, seed: int
) -> Check:
    start = time.perf_counter()
    expected = jax.tree.map(agreement.as_data, jax.block_until_ready(function(*args)))
    agreements = agreement.compare(last.results, expected)
    seconds = time.perf_counter() - start
    wrong = next((each for each in agreements if not each.holds), None)
    difference = None
    if wrong is not None:
        what = f"{wrong.path} ({wrong.problem})" if wrong.problem else wrong.path
        difference = Difference(seed, what, None, None)
    relative = max((each.relative for each in agreements), default=0.0)
    return Check(name, False, relative, None, seconds, difference)
