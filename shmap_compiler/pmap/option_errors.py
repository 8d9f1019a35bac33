"""Mistakes in the arguments of `pmap`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax

from shmap_compiler.base.common_mistakes import not_a_function, not_positions
from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, TypeProblem
from shmap_compiler.base.untyped import Device, Function, Setting


def option_problems(fun: Function, options: Mapping[str, Setting]) -> list[Problem]:
    """What is wrong with the arguments of `pmap`, whatever the function is called on."""
    if not callable(fun):
        needed, example = "a function of one row of its arguments", "pmap(f, axis_name='i', ...)"
        return [not_a_function(fun, needed, example)]
    problems: list[Problem] = []
    name = options["axis_name"]
    if name is not None and not (isinstance(name, str) and name):
        problems.append(_not_a_name(name))
    for where, axes in (("in_axes", options["in_axes"]), ("out_axes", options["out_axes"])):
        leaves, _ = jax.tree_util.tree_flatten_with_path(axes)
        problems += [
            _not_a_dimension(where + jax.tree_util.keystr(path), axis)
            for path, axis in leaves
            if type(axis) is not int
        ]
    for where in ("static_broadcasted_argnums", "donate_argnums"):
        positions = options[where]
        if not isinstance(positions, tuple) or not all(type(k) is int for k in positions):
            problems.append(not_positions(where, positions))
    if not problems:
        both = set(options["static_broadcasted_argnums"]) & set(options["donate_argnums"])
        problems += [_static_and_donated(sorted(both))] if both else []
    if options["devices"] is not None:
        problems += _device_problems(options["devices"])
    size = options["axis_size"]
    if size is not None and not (isinstance(size, int) and size > 0):
        problems.append(
            TypeProblem("axis_size", show_value(size), "a number of rows, 1 or more", "omit it")
        )
    return problems


def _not_a_name(name: object) -> Problem:
    return TypeProblem(
        "axis_name",
        show_value(name),
        "a string that is not empty, or None",
        "write axis_name='i', and the same name in the collectives of the function",
    )


def _not_a_dimension(where: str, axis: object) -> Problem:
    return TypeProblem(
        where,
        show_value(axis),
        "a dimension, or None",
        "write 0 for the first dimension, or None for what is the same on all devices",
    )


def _static_and_donated(positions: Sequence[int]) -> Problem:
    listed = ", ".join(map(str, positions))
    return Problem(
        "donate_argnums",
        f"{listed}, which static_broadcasted_argnums lists, too",
        "positions of arrays: static arguments have no memory to donate",
        f"remove {listed} from donate_argnums",
    )


def _device_problems(devices: Sequence[Device]) -> list[Problem]:
    if not devices:
        return [
            Problem(
                "devices",
                "an empty sequence",
                "one device or more, or None",
                "omit devices, to use the first ones of all",
            )
        ]
    wrong = [d for d in devices if not isinstance(d, jax.Device)]
    if wrong:
        return [
            TypeProblem(
                "devices",
                show_value(wrong[0]),
                "devices only, each a jax.Device",
                "choose some of jax.devices()",
            )
        ]
    repeated = sorted({d for d in devices if devices.count(d) > 1}, key=str)
    return [
        Problem(
            "devices",
            f"{device} {devices.count(device)} times",
            "different devices: each takes one row",
            "list each device once",
        )
        for device in repeated
    ]
