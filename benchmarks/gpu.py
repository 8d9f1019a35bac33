"""What the model of GPUs assumes, measured on one GPU.

    python benchmarks/gpu.py alone            matrix products, copies and small kernels
    python benchmarks/gpu.py beside           products beside a kernel that occupies processors
    python benchmarks/gpu.py host             copies to the memory of the host and back
    python benchmarks/gpu.py programs         those of overlap.py and gradients of blocks, for eight
                                              GPUs, without transfers

"beside" needs CuPy: it starts a kernel of 24 blocks, as NCCL does, that copies memory as fast as a
gather delivers. "programs" runs what one of eight GPUs computes, with the collectives of a mock of
NCCL that XLA has for the purpose; they end at once and deliver nothing. Each line has the median of
seven batches of calls. In the tables, "model" is what `explain` says.
"""

import argparse
import os
import statistics
import time
from functools import partial

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from shmap_passes.cost.beside_collectives import share_taken
from shmap_passes.cost.chips import CHIPS

from shmap_compiler import shard_map

# Rows, inner dimension and columns, in chunks as overlap.py's programs have them, and others.
SIZES = [
    (16384, 8192, 2048),
    (8192, 8192, 2048),
    (4096, 8192, 2048),
    (2048, 8192, 2048),
    (4096, 8192, 8192),
    (4096, 8192, 4096),
    (4096, 8192, 1024),
    (16384, 2048, 8192),
    (16384, 2048, 4096),
    (16384, 2048, 2048),
    (16384, 2048, 1024),
    (8192, 4096, 2048),
    (8192, 2048, 4096),
    (4096, 4096, 2048),
    (4096, 2048, 4096),
    (4096, 4096, 4096),
]

# The shapes of rows and of the weights of blocks, on all devices.
GRADIENTS = {
    "sequence_parallel'": ((65536, 4096), (4096, 16384), (16384, 4096)),
    "gated'": ((65536, 4096), (4096, 16384), (4096, 16384), (16384, 4096)),
    "fused_gate'": ((65536, 4096), (4096, 32768), (16384, 4096)),
    "two_layers'": ((32768, 4096), *((4096, 16384), (16384, 4096)) * 2),
}


def this_chip():
    kind = jax.devices()[0].device_kind
    return next(chip for chip in CHIPS if chip.device_kind == kind)


def normal(seed, *shape, dtype=jnp.bfloat16):
    return (0.02 * jax.random.normal(jax.random.key(seed), shape)).astype(dtype)


def batch(function, args, calls):
    """Seconds of a call, of so many one after the other."""
    start = time.perf_counter()
    for _ in range(calls):
        result = function(*args)
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / calls


def seconds(function, *args, batches=7):
    jax.block_until_ready(function(*args))
    calls = max(5, min(1000, int(0.05 / batch(function, args, 3))))
    return statistics.median(batch(function, args, calls) for _ in range(batches))


def product(m, k, n, dtype=jnp.bfloat16, precision=None):
    args = normal(0, m, k, dtype=dtype), normal(1, k, n, dtype=dtype)
    dot = jax.jit(lambda x, w: jnp.matmul(x, w, precision=precision))
    return dot.lower(*args).compile(), args


def alone():
    chip = this_chip()
    print("| product | type | ms | TFLOP/s | of the published speed |\n|---|---|---|---|---|")
    for *size, dtype, precision, element in [
        *((*size, jnp.bfloat16, None, "bf16") for size in SIZES),
        (8192, 8192, 8192, jnp.bfloat16, None, "bf16"),
        (8192, 8192, 8192, jnp.float32, None, "tf32"),
        (4096, 4096, 4096, jnp.float32, None, "tf32"),
        (16384, 8192, 2048, jnp.float32, None, "tf32"),
        (4096, 4096, 4096, jnp.float32, "highest", "f32"),
    ]:
        function, args = product(*size, dtype, precision)
        took, flops = seconds(function, *args), 2 * np.prod(size, dtype=float)
        share = flops / took / chip.flops[element]
        cells = f"{1e3 * took:.3f} | {flops / took / 1e12:.0f} | {share:.2f}"
        print(f"| {'x'.join(map(str, size))} | {element} | {cells} |", flush=True)
    for mib in (16, 64, 256, 1024):
        x = normal(0, mib * 2**19)
        took = seconds(jax.jit(lambda x: x * 2 + 1), x)
        share = 2 * x.nbytes / took / chip.hbm_bandwidth
        print(f"{mib} MiB read and written: {1e6 * took:.0f} us, {share:.2f} of the bandwidth")
    x = normal(0, 1024)

    def chain(length):
        def steps(x):
            for _ in range(length):
                x = jax.lax.optimization_barrier(x * 2 + 1)
            return x

        return seconds(jax.jit(steps), x)

    print(f"a kernel of 2 KiB: {1e6 * (chain(201) - chain(1)) / 200:.2f} us")


COPY = r"""
extern "C" __global__ void __launch_bounds__(640)
copy(const uint4* from, uint4* to, long long count, int rounds, int pause) {
  extern __shared__ char all_of_a_processor[];
  for (int r = 0; r < rounds; r++)
    for (long long i = blockIdx.x * 640ll + threadIdx.x; i < count; i += gridDim.x * 640ll) {
      to[i] = from[i];
      if (pause) __nanosleep(pause);
    }
}"""
# Blocks, and nanoseconds that a thread sleeps between two copies.
LOADS = ((8, 0), (16, 0), (24, 0), (24, 1000), (24, 3000))


def beside():
    import cupy

    copy = cupy.RawKernel(COPY, "copy")
    copy.max_dynamic_shared_size_bytes = 100 * 1024
    stream = cupy.cuda.Stream(non_blocking=True)
    source = cupy.zeros(2**26, cupy.int32)
    target = cupy.empty_like(source)

    def start(blocks, pause, rounds):
        count = cupy.int64(source.nbytes // 16)
        arguments = (source, target, count, cupy.int32(rounds), cupy.int32(pause))
        with stream:
            copy((blocks,), (640,), arguments, shared_mem=100 * 1024)

    def rate(load):
        """Seconds of one round."""
        stream.synchronize()
        begin = time.perf_counter()
        start(*load, 4)
        stream.synchronize()
        return (time.perf_counter() - begin) / 4

    rates = {load: rate(load) for load in LOADS}
    chip = this_chip()
    names = [f"{n} blocks, {2 * source.nbytes / t / 1e9:.0f} GB/s" for (n, _), t in rates.items()]
    print(f"| product | ms | {' | '.join(names)} | model |\n|---|---|{'---|' * len(names)}---|")
    for size in SIZES:
        function, args = product(*size)
        base = seconds(function, *args)
        calls, row = max(5, int(0.02 / base)), []
        for load, round_ in rates.items():
            longer = []
            for _ in range(3):
                start(*load, int(0.06 / round_) + 2)
                time.sleep(0.002)
                longer.append(batch(function, args, calls) / base)
                assert not stream.done, "the copy ended before the products"
                stream.synchronize()
            row.append(f"{statistics.median(longer):.2f}")
        model = 1 / (1 - share_taken(chip, size[0] * size[2]))
        cells = " | ".join([f"{1e3 * base:.3f}", *row, f"{model:.2f}"])
        print(f"| {'x'.join(map(str, size))} | {cells} |", flush=True)


def layers(policy):
    """The gradient of a scan over eight layers, whose inputs are kept as a policy says."""
    mesh = Mesh(np.array(jax.devices()[:1]), "i")

    def gradient(x, ws):
        @partial(jax.checkpoint, policy=policy)
        def layer(x, w):
            return jnp.tanh(checkpoint_name(x, "x") @ w), None

        return jax.grad(lambda ws: jnp.sum(jax.lax.scan(layer, x, ws)[0].astype("float32")))(ws)

    return shard_map(gradient, mesh=mesh, in_specs=(P(), P()), out_specs=P())


def host():
    from overlap import total

    device = SingleDeviceSharding(jax.devices()[0])
    there = device.with_memory_kind("pinned_host")
    print("| copy | MiB | ms | GB/s |\n|---|---|---|---|")
    for mib in (16, 64, 256, 1024):
        x = normal(0, mib * 2**19)
        for name, source, target in (("to", device, there), ("from", there, device)):
            copy = jax.jit(lambda x: x, out_shardings=target)
            took = seconds(copy, jax.device_put(x, source))
            rate = x.nbytes / took / 1e9
            print(f"| {name} the host | {mib} | {1e3 * took:.2f} | {rate:.1f} |", flush=True)
    policies = jax.checkpoint_policies
    kept = policies.save_only_these_names("x")
    moved = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["x"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    print("| gradient | inputs of layers | ms | model | copies, waits |\n|---|---|---|---|---|")
    for rows, width in ((4096, 4096), (16384, 4096), (4096, 8192)):
        args = normal(0, rows, width), normal(1, 8, width, width)
        for name, policy in (("on the device", kept), ("on the host", moved)):
            compiled = layers(policy).lower(*args).compile()
            took, totals = seconds(compiled, *args), compiled.explain().totals
            figures = (total(totals), totals.host_seconds, totals.host_exposed_seconds)
            run, copies, waits = (f"{1e3 * each:.2f}" for each in figures)
            size = f"{rows}x{width}"
            print(f"| {size} | {name} | {1e3 * took:.2f} | {run} | {copies}, {waits} |", flush=True)


def programs(names):
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_shard_autotuning=false"
    jax.config.update("jax_mock_gpu_topology", "1x8x1")
    from overlap import PROGRAMS, total
    from overlap_blocks import BLOCKS

    blocks = {name: (*BLOCKS[name][:3], shapes) for name, shapes in GRADIENTS.items()}
    mesh = Mesh(np.array(jax.devices()), "i")

    def argument(seed, shape, spec):
        sharding = NamedSharding(mesh, spec)
        block = normal(seed, *sharding.shard_shape(shape))
        return jax.make_array_from_single_device_arrays(shape, sharding, [block])

    print(
        "| program | overlap | computes, ms | model: computes, sends, in all |\n|---|---|---|---|"
    )
    for name in names or (*PROGRAMS, *blocks):
        body, in_specs, out_specs, shapes = PROGRAMS[name] if name in PROGRAMS else blocks[name]
        args = [argument(k, *each) for k, each in enumerate(zip(shapes, in_specs, strict=True))]
        specs = {"in_specs": in_specs, "out_specs": out_specs}
        mapped = shard_map(body, mesh=mesh, check_vma=False, **specs)
        for mode in ("off", "auto"):
            compiled = mapped.lower(*args, overlap=mode, overlap_rounding=True).compile()
            took, totals = seconds(compiled, *args), compiled.explain().totals
            figures = (totals.compute_seconds, totals.wire_seconds, total(totals))
            model = ", ".join(f"{1e3 * each:.2f}" for each in figures)
            print(f"| {name} | {mode} | {1e3 * took:.2f} | {model} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("alone", "beside", "host", "programs"))
    parser.add_argument("--programs", nargs="+")
    options = parser.parse_args()
    if options.part == "programs":
        programs(options.programs)
    else:
        {"alone": alone, "beside": beside, "host": host}[options.part]()


if __name__ == "__main__":
    main()
