"""Targets: the devices a program can be compiled for, here or not, each described by a text.

This table is what one needs of them:

    Target     what every target can say of itself; `Target.parse(text)` reads one
    Chip       what one device computes and holds per second
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
