"""A machine for which a pass decides: its chip, its network, and the places of a mesh in it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .chips import CHIPS, Chip
from .networks import Coordinates, Network, Nodes, Torus

_NETWORKS = {"torus": Torus, "nodes": Nodes}


@dataclass(frozen=True)
class Machine:
    """What the decisions of passes depend on besides the program.

    Attributes:
      places: the coordinates of each device, by position in the mesh.
      compiler_options: whether the program is compiled with the target's compiler options.
    """

    chip: Chip
    network: Network
    places: tuple[Coordinates, ...]
    compiler_options: bool = False

    @property
    def is_tpu(self) -> bool:
        return isinstance(self.network, Torus)

    @property
    def text(self) -> str:
        """One line of JSON, as an option of a pass has it."""
        return _text(self)

    @staticmethod
    @lru_cache(maxsize=64)
    def parse(text: str) -> Machine:
        """Reads what `text` has written.

        Raises:
          ValueError: the text is in another form.
        """
        try:
            contents = json.loads(text)
            chip = next(chip for chip in CHIPS if chip.name == contents["chip"])
            ((kind, fields),) = contents["network"].items()
            network = _NETWORKS[kind](**{k: _value(k, v) for k, v in fields.items()})
            places = tuple(map(tuple, contents["places"]))
            return Machine(chip, network, places, contents["compiler_options"])
        except (ValueError, KeyError, TypeError, StopIteration) as error:
            raise ValueError(f"no description of a machine: {text!r}") from error


@lru_cache(maxsize=64)  # each lowering for a target asks for it
def _text(machine: Machine) -> str:
    kind = "torus" if machine.is_tpu else "nodes"
    fields = vars(machine.network).items()
    network = {k: v if v != math.inf else None for k, v in fields}
    contents = {
        "chip": machine.chip.name,
        "network": {kind: network},
        "places": machine.places,
        "compiler_options": machine.compiler_options,
    }
    return json.dumps(contents, separators=(",", ":"))


def _value(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return math.inf if name == "core_bandwidth" and value is None else value
