"""Targets: the devices a program can be compiled for, attached or not, each described by a text.

The names that other rooms use:

    Target     the interface of targets; `Target.parse(text)` reads one
    Chip       the arithmetic and memory throughput of one device
    Torus      a network of links between neighbours
    Nodes      a network of switches, inside nodes and between them
"""

from shmap_passes.cost.chips import Chip
from shmap_passes.cost.networks import Network, Nodes, Torus

from shmap_compiler.targets.cpu import CpuTarget
from shmap_compiler.targets.gpu import GpuTarget
from shmap_compiler.targets.local import LocalTarget
from shmap_compiler.targets.target import Target
from shmap_compiler.targets.tpu import TpuTarget

__all__ = [
    "Chip",
    "CpuTarget",
    "GpuTarget",
    "LocalTarget",
    "Network",
    "Nodes",
    "Target",
    "Torus",
    "TpuTarget",
]
