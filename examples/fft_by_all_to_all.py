"""A Fourier transform in two dimensions, of an array that is split by rows over eight devices.

A transform in two dimensions is one along each row, then one along each column. Each device has
whole rows, but only parts of columns; an all-to-all between the two splits the array by columns.
The result stays split by columns: restoring rows would cost another all-to-all.

    python examples/fft_by_all_to_all.py    errors, and the all-to-alls that were compiled
    shmap run examples/fft_by_all_to_all.py:power_spectrum   there: one all-to-all
    shmap run examples/fft_by_all_to_all.py:poisson          there and back: two

`poisson` solves the Poisson equation on a periodic square: it finds the potential `u` of charges
`f`, where the sum of the second derivatives of `u` is `-f`. After the transform, a derivative is a
product.

The method is the transpose method ("slab decomposition"), as described in the chapter on
distributed-memory transforms of the FFTW manual.
"""

import os
from functools import partial

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

SIDE = 16

mesh = Mesh(np.array(jax.devices()[:8]), ("i",))
ROWS, COLUMNS = P("i", None), P(None, "i")


def fft2(rows):
    """The transform, split by columns, of an array that is split by rows."""
    rows = jnp.fft.fft(rows, axis=1)
    columns = lax.all_to_all(rows, "i", split_axis=1, concat_axis=0, tiled=True)
    return jnp.fft.fft(columns, axis=0)


def ifft2(columns):
    """The inverse of `fft2`: from columns to rows."""
    columns = jnp.fft.ifft(columns, axis=0)
    rows = lax.all_to_all(columns, "i", split_axis=0, concat_axis=1, tiled=True)
    return jnp.fft.ifft(rows, axis=1)


@partial(shard_map, mesh=mesh, in_specs=ROWS, out_specs=COLUMNS)
def power_spectrum(rows):
    return jnp.abs(fft2(rows)) ** 2


def potential(spectrum, column_frequencies):
    """Divides the spectrum of charges by the squared frequencies: minus a second derivative.

    A constant has frequency zero and no unique potential; it is given zero.
    """
    squared = jnp.fft.fftfreq(SIDE, 1 / SIDE)[:, None] ** 2 + column_frequencies**2
    return jnp.where(squared > 0, spectrum / jnp.where(squared > 0, squared, 1), 0)


@partial(shard_map, mesh=mesh, in_specs=ROWS, out_specs=ROWS)
def poisson(charges):
    spectrum = fft2(charges)
    width = spectrum.shape[1]
    start = lax.axis_index("i") * width
    mine = lax.dynamic_slice_in_dim(jnp.fft.fftfreq(SIDE, 1 / SIDE), start, width)
    return ifft2(potential(spectrum, mine)).real


def power_spectrum_reference(array):
    return jnp.abs(jnp.fft.fft2(array)) ** 2


def poisson_reference(charges):
    return jnp.fft.ifft2(potential(jnp.fft.fft2(charges), jnp.fft.fftfreq(SIDE, 1 / SIDE))).real


array = jnp.asarray(np.random.default_rng(0).standard_normal((SIDE, SIDE)), jnp.float32)
power_spectrum_args = poisson_args = (array,)


def main():
    for name, transform, reference in [
        ("power_spectrum", power_spectrum, power_spectrum_reference),
        ("poisson", poisson, poisson_reference),
    ]:
        compiled = transform.lower(array).compile()
        error = jnp.abs(compiled(array) - reference(array)).max() / jnp.abs(reference(array)).max()
        print(f"{name}: relative error {error:.1e} on {mesh.size} devices")
        for collective in compiled.explain().collectives:
            print(
                f"  {collective.kind} x {collective.count}: {collective.sent_bytes:.0f} bytes sent"
            )


if __name__ == "__main__":
    main()
