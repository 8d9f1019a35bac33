"""What a device does itself, by line of the user's program and named scope."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from shmap_passes.cost.chips import Chip

from shmap_compiler.explain.figures import ComputeCost
from shmap_compiler.explain.roofline import Work

# Parts of the name of an operation that JAX adds, and no user wrote.
_ADDED = re.compile(
    r"(jit|pjit|jvp|vmap|transpose)\(.*\)|shard_map|eval_jaxpr|while|body|cond|scan|closed_call"
    r"|checkpoint|remat\d?|custom_[jv][vj]p_call|core_call|branch_\d+_fun|shmap_body\w*"
)
_WRAPPED = re.compile(r"(?:jvp|vmap|transpose|rematted_computation)\((.*)\)$")


def compute_costs(works: Sequence[Work], chip: Chip | None) -> tuple[ComputeCost, ...]:
    """What kernels cost, those of one line and scope together, the most expensive first."""
    alike: dict[tuple[str, str], list[Work]] = {}
    for work in works:
        alike.setdefault((work.source, named_scope(work.scope)), []).append(work)
    costs = [_sum(*key, group, chip) for key, group in alike.items()]
    return tuple(sorted(costs, key=lambda c: (-(c.seconds or 0.0), -c.flops, -c.traffic_bytes)))


def _sum(source: str, scope: str, works: Sequence[Work], chip: Chip | None) -> ComputeCost:
    seconds = sum(w.trips * w.seconds for w in works)
    flops = sum(w.trips * w.flops for w in works)
    traffic = sum(w.trips * w.traffic for w in works)
    cost = ComputeCost(
        source=short(source),
        scope=scope,
        count=sum(w.trips for w in works),
        seconds=None,
        flops=flops,
        peak_share=None,
        traffic_bytes=traffic,
        bound=None,
        unestimated_seconds=None,
    )
    if chip is None:
        return cost
    at_peak = sum(w.trips * w.flops / (chip.speed(w.element) or float("inf")) for w in works)
    in_memory = traffic / chip.hbm_bandwidth
    larger = max(at_peak, in_memory)
    bound = "compute" if at_peak >= in_memory else "memory"
    return ComputeCost(
        **{
            **vars(cost),
            "seconds": seconds,
            "peak_share": at_peak / seconds if at_peak and seconds else None,
            "bound": "other" if 2 * larger < seconds else bound,
            "unestimated_seconds": sum(w.trips * w.unestimated for w in works),
        }
    )


def named_scope(operation: str) -> str:
    """The scopes in the name of an operation: without its primitive and what JAX adds.

    Examples:
      >>> named_scope("jit(step)/transpose(jvp(Model))/layers_0/while/body/dot_general")
      'Model/layers_0'
    """
    parts = []
    for part in _split(operation)[:-1]:
        while wrapped := _WRAPPED.match(part):
            part = wrapped[1]
        parts += [p for p in _split(part) if p and not _ADDED.fullmatch(p)]
    return "/".join(parts)


def _split(operation: str) -> list[str]:
    """Parts between slashes, but not those within parentheses."""
    parts, depth = [""], 0
    for letter in operation:
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def short(source: str) -> str:
    """A line of source with its path from here; that of a library, from where it is installed."""
    return _short(source, os.getcwd())


@functools.cache
def _short(source: str, here: str) -> str:
    path, colon, line = source.rpartition(":")
    if not colon:
        return source
    installed = _INSTALLED.search(path)
    if installed is not None:
        return f"{installed[1]}:{line}"
    try:
        return f"{Path(os.path.relpath(Path(path).resolve(), here)).as_posix()}:{line}"
    except ValueError:  # On another drive of Windows.
        return source


_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.*)")
