"""Hand-written modules in body form, beside the function that `jax.shard_map` takes."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

P = PartitionSpec
ADD = """({
    ^bb0(%left: tensor<f32>, %right: tensor<f32>):
      %sum = stablehlo.add %left, %right : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    })"""


@dataclass(frozen=True)
class Program:
    """A body `tensor<4x8xf32> %x -> %y` as MLIR text and as a function that jax.shard_map takes."""

    body: str
    function: Callable
    out: str = "4x8"
    manual: tuple[str, ...] = ("i", "j", "k")
    in_spec: tuple = (("i", "j"), "k")
    out_spec: tuple = (("i", "j"), "k")
    mesh: tuple[tuple[str, int], ...] = (("i", 2), ("j", 2), ("k", 2))
    more: str = ""

    @property
    def sizes(self):
        return dict(self.mesh)

    def text(self):
        axes = ", ".join(f'"{name}"={size}' for name, size in self.mesh)
        manual = ", ".join(f'"{name}"' for name in self.manual)
        return f"""module {{
  sdy.mesh @mesh = <[{axes}]>
  func.func public @main(%x: tensor<4x8xf32> {{{_sharding(self.in_spec)}}})
      -> (tensor<{self.out}xf32> {{{_sharding(self.out_spec)}}})
      attributes {{sdy.manual_axes = #sdy<manual_axes{{{manual}}}>}} {{
    {self.body}
    return %y : tensor<{self.out}xf32>
  }}
  {self.more}
}}"""

    def full_input(self):
        splits = [_axes(entry) for entry in self.in_spec]
        shape = [
            size * int(np.prod([self.sizes[axis] for axis in axes]))
            for size, axes in zip((4, 8), splits, strict=True)
        ]
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 97

    def mapped(self):
        """The function under `jax.shard_map`."""
        mesh = jax.make_mesh(
            tuple(self.sizes.values()),
            tuple(self.sizes),
            axis_types=(AxisType.Auto,) * len(self.sizes),
            devices=jax.devices()[: int(np.prod(list(self.sizes.values())))],
        )
        return jax.shard_map(
            self.function,
            mesh=mesh,
            in_specs=P(*self.in_spec),
            out_specs=P(*self.out_spec),
            axis_names=set(self.manual),
            check_vma=False,
        )

    def expected(self):
        return np.asarray(jax.jit(self.mapped())(self.full_input()))


def _axes(entry):
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def _sharding(spec):
    dims = ", ".join("{" + ", ".join(f'"{axis}"' for axis in _axes(entry)) + "}" for entry in spec)
    return f"sdy.sharding = #sdy.sharding<@mesh, [{dims}]>"


def over(*axes):
    refs = ", ".join(f'#stablehlo.axis_ref<name = "{axis}">' for axis in axes)
    return f"replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{refs}]>"


PARTIAL = {"manual": ("i", "k"), "in_spec": ("i", "k")}
