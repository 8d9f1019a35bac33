"""Compares a program after each pass with the program before it, XLA's result and a reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from shmap_passes import Partitioner

from shmap_compiler.base.random_keys import as_data
from shmap_compiler.base.untyped import AnyValue, Function, Leaf, PyTree
from shmap_compiler.lowering.snapshots import ModuleState
from shmap_compiler.records.signature import Signature
from shmap_compiler.simulate import against_reference, against_xla, agreement
from shmap_compiler.simulate.arguments import flat_inputs
from shmap_compiler.simulate.first_difference import FirstDifference
from shmap_compiler.simulate.report import Hang
from shmap_compiler.simulate.rounding import allowing_rounding
from shmap_compiler.simulate.simulate_module import checked_inputs, playable, run, simulate_module
from shmap_compiler.simulate.simulation import Simulation
from shmap_compiler.simulate.trace_values import ValueTrace, agrees, distance, first_difference
from shmap_compiler.simulate.validation import Check, Difference, Validation

XLA, REFERENCE = "XLA", "reference"
"""The names of what the last module is compared with."""


def validate(
    signature: Signature,
    stages: Sequence[ModuleState],
    args: Sequence[AnyValue],
    compiled: Function | None,
    reference: Function | None,
    seeds: int,
    partitioner: Partitioner,
) -> Validation:
    """Compares the modules of a program with each other and with what XLA and a reference compute.

    Args:
      partitioner: the form of the last module.

    Raises:
      SimulationError: the arguments are not those of the program, or it cannot be simulated.
    """
    merged: dict[str, Check] = {}
    hang: Hang | None = None
    for seed in range(seeds):
        given = args if seed == 0 else randomized(args, seed)
        comparison = _Comparison(signature, stages, given, seed, partitioner)
        for name, check in comparison.checks(compiled, reference):
            old = merged.get(name)
            merged[name] = check if old is None else _worse(old, check)
        hang = hang or comparison.hang
    return Validation(signature.who, tuple(merged.values()), hang)


def _worse(old: Check, new: Check) -> Check:
    return Check(
        old.name,
        old.bitwise,
        max(old.relative, new.relative),
        old.exchanges,
        old.seconds + new.seconds,
        old.difference or new.difference,
    )


def randomized(args: Sequence[AnyValue], seed: int) -> tuple[AnyValue, ...]:
    """The arguments with random numbers in place of arrays of floats and complex numbers."""
    rng = np.random.default_rng(seed)

    def one(leaf: Leaf) -> AnyValue:
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


class _Comparison:
    """The comparisons for one seed.

    Attributes:
      hang: the deadlock of the last module, after `checks`; None if it has none.
    """

    def __init__(
        self,
        signature: Signature,
        stages: Sequence[ModuleState],
        args: Sequence[AnyValue],
        seed: int,
        partitioner: Partitioner,
    ):
        self.signature, self.stages, self.args = signature, stages, args
        self.seed = seed
        self.partitioner: Partitioner = partitioner
        self.inputs, self.axes = flat_inputs(signature, args), dict(signature.mesh.shape)
        self.hang: Hang | None = None

    def checks(
        self, compiled: Function | None, reference: Function | None
    ) -> Iterator[tuple[str, Check]]:
        """(a unique name, the check) of each stage; a pass may run several times."""
        before: ModuleState | None = None
        last: Simulation | None = None
        for number, stage in enumerate(self.stages):
            start = time.perf_counter()
            if last is not None and before is not None and stage.text == before.text:
                now = last
            else:
                now = self._simulated(stage)
            seconds = time.perf_counter() - start
            relative, difference = 0.0, None
            if last is not None and before is not None and now is not last:
                relative, difference = self._compare(before, stage, last, now)
            count = len(now.exchanges)
            check = Check(stage.name, stage.keeps_bits, relative, count, seconds, difference)
            yield f"{number} {stage.name}", check
            before, last = stage, now
        if last is None or last.hang is not None:
            self.hang = None if last is None else last.hang
            return
        if compiled is not None:
            yield XLA, self._against(XLA, compiled, last, self._first_of_xla)
        if reference is not None:
            found = reference

            def search(result: int) -> FirstDifference:
                return self._first_of_reference(result, found)

            yield REFERENCE, self._against(REFERENCE, reference, last, search)

    def _simulated(self, stage: ModuleState) -> Simulation:
        who, tree = self.signature.who, self.signature.out_tree
        return simulate_module(stage.text, self.inputs, axes=self.axes, who=who, out_tree=tree)

    # ---------------------------------------------------------------------------- between passes

    def _compare(
        self, before: ModuleState, stage: ModuleState, last: Simulation, now: Simulation
    ) -> tuple[float, Difference | None]:
        if (last.hang is None) != (now.hang is None):
            what = "the devices deadlock" if now.hang else "the devices do not deadlock any more"
            hang = now.hang or last.hang
            assert hang is not None, "one of the two has one"
            first = next(p for p in hang.positions if p.place is not None)
            return np.inf, Difference(self.seed, what, first.device, first.place)
        relative, where = 0.0, None
        for path, ours, theirs in zip(self._paths(), now.blocks, last.blocks, strict=False):
            for device, (block, expected) in enumerate(zip(ours, theirs, strict=True)):
                relative = max(relative, distance(block, expected))
                if where is None and not agrees(block, expected, _allowed(stage, block)):
                    where = path, device, block
        if where is None:
            return relative, None
        first = self._first_of_pass(before, stage, where[1], where[2])
        return relative, Difference(self.seed, where[0], where[1], first.place, first.note)

    def _first_of_pass(
        self, before: ModuleState, stage: ModuleState, device: int, result: np.ndarray
    ) -> FirstDifference:
        """The first operation of the module after a pass that makes other values than before."""
        traces = []
        for state in (before, stage):
            program = playable(state.text, self.axes, self.signature.who, every_op=True)
            trace = ValueTrace()
            inputs = checked_inputs(program, self.inputs, self.signature.who)
            run(program, inputs, self.signature.who, trace.see)
            traces.append(trace)
        single = np.dtype(np.float32)
        tolerance = None if stage.keeps_bits else agreement.default_tolerance(single)
        return first_difference(traces[0], traces[1], tolerance, device, result)

    def _paths(self) -> list[str]:
        tree = self.signature.out_tree
        pairs = jax.tree_util.tree_leaves_with_path(
            jax.tree.unflatten(tree, range(tree.num_leaves))
        )
        return [f"result{jax.tree_util.keystr(path)}" for path, _ in pairs]

    # -------------------------------------------------------- with another program for the results

    def _against(
        self,
        name: str,
        function: Function,
        last: Simulation,
        search: Callable[[int], FirstDifference],
    ) -> Check:
        start = time.perf_counter()

        def run(*args: AnyValue) -> PyTree:
            return jax.tree.map(as_data, jax.block_until_ready(function(*args)))

        expected = run(*self.args)
        agreements = allowing_rounding(
            agreement.compare(last.results, expected),
            self._last_in_body_form.text,
            lambda *args: list(map(np.asarray, jax.tree.leaves(run(*args)))),
            self.args,
            list(map(np.asarray, jax.tree.leaves(expected))),
        )
        seconds = time.perf_counter() - start
        relative = max((each.relative for each in agreements), default=0.0)
        wrong = next((k for k, each in enumerate(agreements) if not each.holds), None)
        difference = None
        if wrong is not None:
            found = agreements[wrong]
            what = f"{found.path} ({found.problem})" if found.problem else found.path
            first = FirstDifference(None, None) if found.problem else search(wrong)
            difference = Difference(self.seed, what, first.device, first.place, first.note)
        return Check(name, False, relative, None, seconds, difference)

    @property
    def _last_in_body_form(self) -> ModuleState:
        names = [stage.name for stage in self.stages]
        if against_xla.LAST_IN_BODY_FORM not in names:
            return self.stages[-1]
        return self.stages[names.index(against_xla.LAST_IN_BODY_FORM) - 1]

    def _first_of_xla(self, result: int) -> FirstDifference:
        text = self._last_in_body_form.text
        return against_xla.first_difference(
            text, self.signature, self.inputs, result, self.partitioner
        )

    def _first_of_reference(self, result: int, reference: Function) -> FirstDifference:
        text, who = self._last_in_body_form.text, self.signature.who
        return against_reference.first_difference(
            text, self.inputs, self.axes, who, result, reference, self.args
        )


def _allowed(stage: ModuleState, block: np.ndarray) -> float | None:
    return None if stage.keeps_bits else agreement.default_tolerance(block.dtype)
