"""The check for hangs (R18) against the simulator, on random programs with control flow.

What the check accepts never hangs. Of what it rejects, most hangs; the rest takes the same way on
all devices for a reason that cannot be inferred.
"""

import os
from collections import Counter

import pytest
from control_programs import SPECS, arguments, body

from shmap_compiler import HangError, shard_map

LONG = int(os.environ.get("SHMAP_HANG_PROGRAMS", "2000"))


def outcome(seed):
    """Whether the check accepts the program of a seed, and whether that hangs."""
    args = arguments(seed)
    try:
        lowered, verdict = shard_map(body(seed), **SPECS).lower(*args), "accepted"
    except HangError:
        lowered = shard_map(body(seed), check_hangs=False, **SPECS).lower(*args)
        verdict = "rejected"
    simulation = lowered.simulate(*args, stage="body")
    if verdict == "accepted":
        assert simulation.hang is None, f"seed {seed}\n{lowered.as_text('graph')}\n{simulation}"
        assert not any(exchange.out_of_step for exchange in simulation.exchanges), f"seed {seed}"
    return verdict, simulation.hang is not None


def outcomes(seeds):
    found = Counter(map(outcome, seeds))
    print(f"\n{found}")
    return found


def test_what_the_check_accepts_does_not_hang():
    found = outcomes(range(16))
    assert found["accepted", False] >= 3
    assert found["rejected", True] >= 4


@pytest.mark.long
def test_what_the_check_accepts_does_not_hang_in_many_programs():
    found = outcomes(range(LONG))
    assert found["accepted", False] >= LONG // 8
    assert found["rejected", True] >= LONG // 8
