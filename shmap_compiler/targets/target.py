"""Target: devices to compile for, attached or not, described by a text."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh
from shmap_passes.cost.chips import Chip
from shmap_passes.cost.networks import Coordinates, Network

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import OptionProblem, Problem, TargetError
from shmap_compiler.base.meshes import attached_devices
from shmap_compiler.base.untyped import Device, Setting, Unchecked

_LONGEST_TEXT = 100


@dataclass(frozen=True)
class Target:
    """Devices to compile for; each kind is a subclass.

    Attributes:
      text: The text that describes the target, such as "tpu:v5e:2x4".
      kind: The first word of the texts of this kind.
      syntax: How texts of this kind are written.
      module: The Python module that provides the compiler, "" if it comes with JAX.
      extra: The extra of this package that installs the module.

    Examples:
      >>> target = Target.parse("tpu:v5e:2x4")
      >>> target.platform, target.device_count, target.chip.hbm_bytes // 2**30
      ('tpu', 8, 16)
    """

    text: str

    kind: ClassVar[str]
    syntax: ClassVar[str]
    module: ClassVar[str] = ""
    extra: ClassVar[str] = ""

    @staticmethod
    def parse(text: str, who: str | None = None) -> Target:
        """Returns the target that a text describes.

        Args:
          text: For example "tpu:v5e:2x4".
          who: The user's function, for the error.

        Raises:
          TargetError: There is no such target.
        """
        kinds = Target.__subclasses__()
        if not isinstance(text, str) or len(text) > _LONGEST_TEXT:
            problem = OptionProblem(
                "target",
                show_value(text),
                f"a Target, or text as one of {', '.join(repr(kind.syntax) for kind in kinds)}",
                "write what to compile for, e.g. 'cpu:8'",
            )
            raise TargetError(who, [problem])
        kind = next((k for k in kinds if k.kind == text.partition(":")[0]), None)
        target = kind.read(text) if kind else _unknown(text, [k.syntax for k in kinds])
        if isinstance(target, Problem):
            raise TargetError(who, [target])
        return target

    @classmethod
    def read(cls, text: str) -> Target | OptionProblem:
        """Returns the target of this kind that `text` describes, or what is wrong with the text."""
        raise NotImplementedError

    @property
    def platform(self) -> str:
        """What JAX lowers for: "cpu", "tpu" or "cuda"."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------- figures

    @property
    def chip(self) -> Chip | None:
        """The figures of one device; None if unknown."""
        return None

    @property
    def network(self) -> Network | None:
        """The network that connects the devices; None if unknown."""
        return None

    @property
    def device_count(self) -> int:
        """The number of devices."""
        raise NotImplementedError

    def place(self, device: Device) -> Coordinates:
        """Returns the coordinates of one of the devices in the network."""
        raise NotImplementedError

    @property
    def compiler_options(self) -> Mapping[str, Setting]:
        """Compiler options that let communication overlap with computation.

        They have little effect on programs that are not written for overlap.
        """
        return {}

    def options_for_memory(self, share: float) -> Mapping[str, Setting]:
        """Options that trade time for memory.

        Args:
          share: of the memory of a device, which the schedule should not exceed.

        Returns:
          Options; none if the compiler has no such option.
        """
        return {}

    @property
    def options_without_devices(self) -> Mapping[str, Setting]:
        """Options that the compiler needs where it has no device to try kernels on."""
        return {}

    # -------------------------------------------------------------------------------- devices

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that a process needs before JAX starts and `devices` is called."""
        return {}

    @property
    def is_here(self) -> bool:
        """Whether these devices are attached to this process.

        For others, programs can be compiled but not run. They are compiled in a separate process,
        with the environment that the compiler needs, because the compiler may abort it.
        """
        return len(self._devices_here()) == self.device_count

    def devices(self) -> list[Device]:
        """Returns the attached devices, or else devices that can only be compiled for.

        In the latter case the compiler of the target is loaded into this process.
        """
        return self._devices_here() if self.is_here else self._compile_only_devices()

    def _devices_here(self) -> list[Device]:
        kind = self.chip.device_kind if self.chip else None
        return [d for d in attached_devices() if d.device_kind == kind]

    def _compile_only_devices(self) -> list[Device]:
        raise NotImplementedError

    def missing(self) -> list[Problem]:
        """Returns what must be installed before programs can be compiled for this target."""
        if not self.module or importlib.util.find_spec(self.module) is not None:
            return []
        return [self.lacks(f"no module {self.module!r}, which brings its compiler")]

    def lacks(self, what: str) -> OptionProblem:
        """Returns the problem of a package that is missing and that this kind's extra installs."""
        needed = f"the extra {self.extra!r} of shmap_compiler"
        fix = f"run: pip install 'shmap_compiler[{self.extra}]'"
        return OptionProblem(self.where, what, needed, fix)

    # ------------------------------------------------------------------------------------ mesh

    def mesh(self, sizes: Mapping[str, int], axis_types: Sequence[AxisType] | None = None) -> Mesh:
        """Returns a mesh over these devices that follows their physical topology.

        Neighbors along a mesh axis are neighbors in the network where JAX's mesh builder finds such
        an arrangement, so device ids are in no particular order in it. A program refers to devices
        by their positions in the mesh.

        Args:
          sizes: Mesh axis -> size.
          axis_types: One type per axis; Auto by default.

        Raises:
          TargetError: The axes do not fit the devices.
        """
        problems = self.mesh_problems(sizes)
        if problems:
            raise TargetError(None, problems)
        devices = self.devices()[: math.prod(sizes.values())]
        types = tuple(axis_types or (AxisType.Auto,) * len(sizes))
        return Mesh(_arranged(devices, tuple(sizes.values())), tuple(sizes), axis_types=types)

    def mesh_problems(self, sizes: Mapping[str, int], *, is_whole: bool = False) -> list[Problem]:
        """Returns why a mesh of these axes (name -> size) does not fit these devices.

        Args:
          sizes: Mesh axis -> size.
          is_whole: Whether the mesh must have all devices; otherwise CPUs may be left.
        """
        needed = math.prod(sizes.values())
        if needed == self.device_count or (not is_whole and self._takes(needed)):
            return []
        shape = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        product = "*".join(map(str, sizes.values())) or "1"
        return [
            OptionProblem(
                f"mesh({shape}) on {self.where}",
                f"{product} = {needed} devices in the mesh",
                f"{self.device_count}, the devices of the target",
                f"make the mesh of {self.device_count} devices, or choose a target of {needed}",
            )
        ]

    def _takes(self, device_count: int) -> bool:
        """Whether a mesh has all devices, which the network and JAX's mesh builder require."""
        return device_count == self.device_count

    @property
    def where(self) -> str:
        """The name of the target in error messages."""
        return f"target {self.text!r}"

    def __str__(self) -> str:
        return self.text


def _arranged(devices: Sequence[Device], shape: tuple[int, ...]) -> Unchecked:
    try:
        return mesh_utils.create_device_mesh(shape, devices)
    except NotImplementedError:
        # No mesh axis can be assigned whole dimensions of the network.
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)


def _unknown(text: str, forms: Sequence[str]) -> OptionProblem:
    return OptionProblem(
        f"target {text!r}",
        f"the kind {text.partition(':')[0]!r}",
        f"one of: {', '.join(forms)}",
        "write one of these, e.g. 'tpu:v5e:2x4'",
    )
