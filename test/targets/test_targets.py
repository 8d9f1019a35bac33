"""Targets: their texts, their meshes, and compiling for devices that are not here."""

import io
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import needs_gpu_compiler, needs_tpu_compiler
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from shmap_tools.cli.progress import Progress

from shmap_compiler import (
    PARTITIONERS,
    CompiledForTarget,
    Executable,
    Target,
    TargetError,
    shard_map,
)
from shmap_compiler.stages import compile_for_target, memory_report, subprocess_compiler
from shmap_compiler.targets import Nodes, Torus, TpuTarget, gpu

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
B = np.arange(16 * 4, dtype=np.float32).reshape(16, 4)

for_both_partitioners = pytest.mark.parametrize("partitioner", PARTITIONERS)


def matmul(a, b):
    return lax.psum(a @ b, "j")


def mapped(mesh=MESH, fun=matmul):
    return shard_map(fun, mesh=mesh, in_specs=(P("i", "j"), P("j")), out_specs=P("i"))


def types(*shapes, dtype=jnp.bfloat16):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def refused(where, found, needed, fix):
    """The error with these four parts, each literal."""
    parts = (where, f"found:  {found}", f"needed: {needed}", f"fix:    {fix}")
    return pytest.raises(TargetError, match="(?s)" + ".*".join(map(re.escape, parts)))


# ---------------------------------------------------------------------------------------- texts


def torus(shape, wraps, link, other, **more):
    return Torus(shape, wraps, link, other_link_bandwidth=other, **more)


@pytest.mark.parametrize(
    ("text", "count", "chip", "network"),
    [
        ("cpu:8", 8, None, None),
        ("local", 8, None, None),
        ("tpu:v5e:2x4", 8, "TPU v5e", torus((2, 4), (False, False), 50e9, 45e9)),
        ("tpu:v5e:8x16", 128, "TPU v5e", torus((8, 16), (False, True), 50e9, 45e9)),
        ("tpu:v6e:16x16", 256, "TPU v6e", torus((16, 16), (True, True), 100e9, 90e9)),
        ("tpu:v5p:2x2x4", 16, "TPU v5p", torus((2, 2, 4), (False,) * 3, 100e9, 90e9)),
        ("tpu:v5p:4x4x8", 128, "TPU v5p", torus((4, 4, 8), (True,) * 3, 100e9, 90e9)),
        (
            "tpu:tpu7x:2x2x1",
            8,
            "TPU7x",
            torus((2, 2, 1), (False,) * 3, 100e9, 90e9, cores=2, core_bandwidth=600e9),
        ),
        ("gpu:h100:8", 8, "NVIDIA H100 SXM", Nodes(1, 8, 450e9, 400e9, measured=True)),
        ("gpu:h100:2x4", 8, "NVIDIA H100 SXM", Nodes(2, 4, 450e9, 200e9, measured=True)),
        ("gpu:h200:8", 8, "NVIDIA H200 SXM", Nodes(1, 8, 450e9, 400e9, measured=True)),
    ],
)
def test_text_is_read(text, count, chip, network):
    target = Target.parse(text)
    assert str(target) == text
    assert target.device_count == count
    assert (target.chip and target.chip.name, target.network) == (chip, network)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("gpu:h100:4", [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("gpu:h100:2x4", [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]),
        ("gpu:h100:3x2", [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
    ],
)
def test_places_of_gpus(text, places):
    """(node, number in it), as explain asks for them; here without the plugin."""
    target = Target.parse(text)
    devices = [SimpleNamespace(id=k) for k in range(target.device_count)]
    assert [target.place(device) for device in devices] == places


@pytest.mark.parametrize(
    ("text", "topology", "described"),
    [
        ("gpu:h100:8", "1x1x8", {"name": '"NVIDIA H100 80GB HBM3"', "l2_cache_size": "52428800"}),
        ("gpu:h100:3x2", "3x1x2", {"core_count": "132", "memory_bandwidth": "3350000000000"}),
        # The same as an attached one describes itself, but for the memory.
        (
            "gpu:h200:8",
            "1x1x8",
            {
                "name": '"NVIDIA H200"',
                "core_count": "132",
                "l2_cache_size": "62914560",
                "device_memory_size": "141000000000",
                "memory_bandwidth": "4800000000000",
            },
        ),
    ],
)
def test_what_the_compiler_of_gpus_is_asked_for(text, topology, described, monkeypatch):
    """Nodes on one network, each with its GPUs; here without the plugin."""
    asked = {}

    def get_topology_desc(**options):
        asked.update(options)
        return SimpleNamespace(devices=[])

    monkeypatch.setattr(gpu.topologies, "get_topology_desc", get_topology_desc)
    assert Target.parse(text)._compile_only_devices() == []
    assert asked["platform"] == "cuda"
    assert asked["topology"] == topology
    for field, value in described.items():
        assert f"  {field}: {value}\n" in asked["target_config"]


@pytest.mark.parametrize(
    ("text", "found", "needed", "fix"),
    [
        ("tpy:v5e:2x4", "the kind 'tpy'", "one of: cpu:DEVICES, gpu:", "write one of these"),
        ("", "the kind ''", "one of: cpu:DEVICES", "write one of these"),
        ("cpu", "'' as the number of devices", "a whole number", "write cpu: and a number"),
        ("cpu:0", "'0' as the number of devices", "a whole number", "write cpu: and a number"),
        ("local:2", "'2' after 'local'", "nothing", "write 'local'"),
        (
            "tpu:v5e",
            "'v5e' after 'tpu:'",
            "a generation, one of v5e, v5p, v6e, tpu7x",
            "write e.g. 'tpu:v5e:2x4'",
        ),
        ("tpu:v9:2x4", "'v9:2x4' after", "a generation, one of v5e, v5p, v6e, tpu7x", "write e.g."),
        ("tpu:v5e:2x", "'v5e:2x' after", "a generation, one of v5e", "write e.g."),
        ("tpu:v5e:2x2x2", "8 chips as 2x2x2", "2 dimensions", "use one of tpu:v5e:2x2"),
        ("tpu:v5p:4x4", "16 chips as 4x4", "3 dimensions", "use one of tpu:v5p:2x2x2"),
        ("cpu:08", "'08' as the number of devices", "a whole number", "write cpu: and a number"),
        (
            "cpu:\u0668",
            "'\u0668' as the number of devices",
            "a whole number",
            "write cpu: and a number",
        ),
        ("tpu:v5e:02x4", "'v5e:02x4' after 'tpu:'", "a generation, one of v5e", "write e.g."),
        (
            "tpu:v5e:2x\u0664",
            "'v5e:2x\u0664' after 'tpu:'",
            "a generation, one of v5e",
            "write e.g.",
        ),
        ("gpu:h100:1\u0668", "'h100:1\u0668' after 'gpu:'", "a model, one of h100", "write e.g."),
        ("tpu:v5e:0x4", "0 chips as 0x4", "at least one chip", "use one of tpu:v5e:1x1"),
        ("tpu:v6e:32x16", "512 chips", "at most 256, the 16x16 of a pod", "use one of"),
        ("gpu:h100", "'h100' after 'gpu:'", "a model, one of h100", "write e.g. 'gpu:h100:8'"),
        ("gpu:a1:8", "'a1:8' after 'gpu:'", "a model, one of h100", "write e.g. 'gpu:h100:8'"),
        ("gpu:h100:0", "'h100:0' after", "a model, one of h100", "write e.g."),
        ("gpu:h100:20", "20 GPUs in a node", "at most 8", "write 'gpu:h100:3x8'"),
    ],
)
def test_text_is_refused(text, found, needed, fix):
    with refused(f"target {text!r}", found, needed, fix):
        Target.parse(text)


def test_refusal_names_the_function():
    with pytest.raises(TargetError, match=r"shard_map of `matmul` \(.*test_targets.py:\d+\):"):
        mapped().lower(A, B).compile("tpu:v5e")


# --------------------------------------------------------------------------------- devices here


@for_both_partitioners
@pytest.mark.parametrize("mesh", [MESH, MESH.abstract_mesh], ids=["devices", "abstract"])
@pytest.mark.parametrize("text", ["cpu:8", "local"])
def test_target_here_gives_an_executable(partitioner, mesh, text):
    executable = mapped(mesh).lower(A, B, partitioner=partitioner).compile(text)
    assert isinstance(executable, Executable)
    assert executable.target == Target.parse(text)
    np.testing.assert_array_equal(executable(A, B), A @ B)


def test_mesh_may_be_smaller_than_what_is_here():
    mesh = AbstractMesh((2, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    np.testing.assert_array_equal(mapped(mesh).lower(A, B).compile("cpu:4")(A, B), A @ B)
    np.testing.assert_array_equal(mapped(mesh).lower(A, B).compile("local")(A, B), A @ B)


WITHOUT_USED_INPUTS = pytest.mark.parametrize("args", [(), (A,)], ids=["no_inputs", "unused"])


def lowered_positions(args, partitioner):
    """A program of a mesh without devices, all of whose axes are Explicit, that uses no inputs."""
    mesh = AbstractMesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
    fun = shard_map(lambda *_: lax.axis_index("i")[None], mesh=mesh, in_specs=P(), out_specs=P("i"))
    return fun.lower(*args, partitioner=partitioner)


@for_both_partitioners
@WITHOUT_USED_INPUTS
def test_explicit_meshes_without_devices_need_no_inputs(args, partitioner):
    lowered = lowered_positions(args, partitioner)
    assert lowered.portable("tpu").platform == "tpu"
    for executable in (lowered.compile("cpu:8"), lowered.portable("cpu").compile("cpu:8")):
        np.testing.assert_array_equal(executable(*args), np.arange(4))


@needs_tpu_compiler
@WITHOUT_USED_INPUTS
def test_explicit_meshes_without_inputs_are_compiled_for_other_devices(args):
    compiled = lowered_positions(args, "gspmd").compile("tpu:v5e:2x4")
    assert "num_partitions=8" in compiled.as_text()


def test_other_devices_than_those_of_the_mesh():
    last = jax.sharding.Mesh(np.array(jax.devices()[4:]).reshape(2, 2), ("i", "j"))
    lowered = mapped(last).lower(A, B)
    on_first = lowered.compile("cpu:4")(A, B)
    assert lowered.compile()(A, B).sharding.device_set == set(jax.devices()[4:])
    assert on_first.sharding.device_set == set(jax.devices()[:4])
    np.testing.assert_array_equal(on_first, A @ B)


def test_callbacks_run_on_the_devices_of_the_mesh_only():
    def body(a, b):
        jax.debug.callback(lambda x: None, a)
        return matmul(a, b)

    np.testing.assert_array_equal(mapped(fun=body).lower(A, B).compile("cpu:8")(A, B), A @ B)
    with refused(
        "debug_callback at test",
        "a call back into Python",
        "a program that does not call",
        "remove",
    ):
        mapped(MESH.abstract_mesh, body).lower(A, B).compile("cpu:8")


def test_more_cpu_devices_than_here():
    mesh = AbstractMesh((8, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    with refused(
        "target 'cpu:16'",
        "8 CPU devices",
        "16",
        "set XLA_FLAGS=--xla_force_host_platform_device_count=16 ",
    ):
        mapped(mesh).lower(A, B).compile("cpu:16")


# ---------------------------------------------------------------------------- meshes and targets


@pytest.mark.parametrize(
    ("text", "there"),
    [("tpu:v5e:4x4", 16), ("tpu:v5p:2x2x1", 4), ("gpu:h100:2x8", 16), ("cpu:4", 4)],
)
def test_mesh_that_does_not_fit(text, there, monkeypatch):
    monkeypatch.setattr(type(Target.parse(text)), "module", "")
    with refused(
        f"mesh(i=4, j=2) on target {text!r}",
        "4*2 = 8 devices in the mesh",
        f"{there}, the devices of the target",
        f"make the mesh of {there} devices, or choose a target of 8",
    ):
        mapped().lower(A, B).compile(text)


@pytest.mark.parametrize(("text", "kind"), [("tpu:v5e:2x4", "tpu"), ("gpu:h100:8", "gpu")])
def test_missing_compiler_names_the_command(text, kind, monkeypatch):
    target = Target.parse(text)
    monkeypatch.setattr(type(target), "module", "no_such_compiler")
    with refused(
        f"target {text!r}",
        "no module 'no_such_compiler', which brings its compiler",
        f"the extra '{kind}' of shmap_compiler",
        f"run: pip install 'shmap_compiler[{kind}]'",
    ):
        mapped().lower(A, B).compile(target)


# ------------------------------------------------------------------------------ devices elsewhere


@needs_tpu_compiler
@for_both_partitioners
@pytest.mark.parametrize("text", ["tpu:v5e:2x4", "tpu:v5p:2x2x2", "tpu:v6e:2x4", "tpu:tpu7x:2x2x1"])
def test_tpu(text, partitioner):
    compiled = mapped().lower(*types((512, 256), (256, 128)), partitioner=partitioner).compile(text)
    assert isinstance(compiled, CompiledForTarget)
    hlo = compiled.as_text()
    assert "is_scheduled=true" in hlo
    assert "num_partitions=8" in hlo
    assert len(re.findall(r" all-reduce(?:-start)?\(", hlo)) == 1
    # The line of the psum is the user's, not one of the process that compiled.
    assert __file__.rpartition("/")[2] in hlo
    assert "worker.py" not in hlo
    # 128x128 @ 128x128 on each device.
    assert compiled.cost_analysis()["flops"] >= 2 * 128**3
    figures = compiled.memory_analysis()
    assert figures.argument_size_in_bytes == 2 * (128 * 128 + 128 * 128)
    assert figures.output_size_in_bytes == 2 * 128 * 128


@needs_tpu_compiler
def test_program_for_groups_by_device_ids():
    lowered = mapped().lower(*types((512, 256), (256, 128)), groups="ids")
    assert " all-reduce" in lowered.compile("tpu:v5e:2x4").as_text()


@needs_tpu_compiler
def test_random_keys_are_compiled_for_other_devices():
    draws = shard_map(
        lambda keys: jax.vmap(lambda key: jax.random.uniform(key, (2,)))(keys),
        mesh=AbstractMesh((8,), ("i",), axis_types=(AxisType.Auto,)),
        in_specs=P("i"),
        out_specs=P("i"),
    )
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    assert "num_partitions=8" in draws.lower(keys).compile("tpu:v5e:2x4").as_text()


@needs_tpu_compiler
def test_lowered_again_for_a_mesh_that_follows_the_network():
    mesh = AbstractMesh((16, 4), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    compiled = mapped(mesh).lower(*types((2048, 512), (512, 128))).compile("tpu:v5p:4x4x4")
    assert "num_partitions=64" in compiled.as_text()
    ids = np.array(compiled.device_ids)
    assert sorted(ids) == list(range(64))
    # The chip of a device is at (id % 4, id // 4 % 4, id // 16). Each line along the mesh axis of
    # size four is a line of the network, whose ends are linked.
    places = [np.reshape(place, (16, 4)) for place in (ids % 4, ids // 4 % 4, ids // 16)]
    lengths = np.transpose([np.ptp(place, axis=1) for place in places])
    assert np.array_equal(np.sort(lengths, axis=1), [[0, 0, 3]] * 16)
    steps = [abs(np.roll(place, 1, axis=1) - place) for place in places]
    assert set(np.sum(np.minimum(steps, 4 - np.array(steps)), axis=0).flat) == {1}


@needs_tpu_compiler
def test_phases_are_reported():
    phases = []
    mapped().lower(*types((512, 256), (256, 128))).compile("tpu:v5e:2x4", phases.append)
    assert phases == ["topology", "lowering", "compiling", "saving"]


@needs_tpu_compiler
def test_automatic_axes():
    """libtpu aborts on what GSPMD makes of this program."""

    def body(x):
        return lax.all_to_all(x, "i", 0, 1, tiled=True)

    f = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P(None, "i"), axis_names={"i"})
    compiled = f.lower(*types((64, 32))).compile("tpu:v5e:2x4")
    assert "all-to-all" in compiled.as_text()


@needs_tpu_compiler
def test_cannot_be_called():
    compiled = mapped().lower(A, B).compile("tpu:v5e:2x4")
    with refused("a call", "a program compiled for", "the 8 devices of tpu:v5e:2x4", "save() it"):
        compiled(A, B)


@needs_tpu_compiler
def test_arrangement_that_the_compiler_refuses():
    mesh = AbstractMesh((3, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    with refused(
        "target 'tpu:v5e:1x6'",
        "libtpu says: INVALID_ARGUMENT",
        "an arrangement of chips that libtpu takes",
        "use one of tpu:v5e:2x2, tpu:v5e:2x4",
    ):
        mapped(mesh).lower(*types((6, 2), (2, 2))).compile("tpu:v5e:1x6")


@needs_tpu_compiler
def test_arrangement_that_no_mesh_would_fit():
    with refused(
        "target 'tpu:v5e:3x3'",
        "libtpu says: INVALID_ARGUMENT",
        "an arrangement of chips that libtpu takes",
        "use one of tpu:v5e:2x2, tpu:v5e:2x4, tpu:v5e:4x4",
    ):
        mapped().lower(A, B).compile("tpu:v5e:3x3")


@needs_tpu_compiler
def test_program_that_does_not_fit_in_memory():
    with refused(
        "memory of one device of target 'tpu:v5e:2x4'",
        "18.00 GiB needed; the largest arrays on a device: ",
        "at most 15.75 GiB: it is 2.25 GiB over",
        "split these arrays over more devices",
    ) as caught:
        mapped().lower(*types((2**19, 2**16), (2**16, 2**15))).compile("tpu:v5e:2x4")
    message = str(caught.value)
    assert "args[0] bf16[131072,32768], 8.00 GiB" in message
    assert "result [0] bf16[131072,32768], 8.00 GiB" in message
    assert re.search(
        r"dot_general bf16\[131072,32768\] at .*test_targets.py:\d+ \(matmul\)", message
    )


@needs_tpu_compiler
def test_callbacks_need_devices():
    def body(a, b):
        jax.debug.print("{}", a.sum())
        return matmul(a, b)

    with refused(
        "at test", "a call back into Python", "a program that does not call", "remove the"
    ):
        mapped(fun=body).lower(A, B).compile("tpu:v5e:2x4")


@needs_gpu_compiler
@for_both_partitioners
@pytest.mark.parametrize(
    ("text", "shape"), [("gpu:h100:8", (4, 2)), ("gpu:h100:2x8", (8, 2)), ("gpu:h200:8", (4, 2))]
)
def test_gpu(text, shape, partitioner):
    mesh = AbstractMesh(shape, ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    lowered = mapped(mesh).lower(*types((512, 256), (256, 128)), partitioner=partitioner)
    hlo = lowered.compile(text).as_text()
    assert "is_scheduled=true" in hlo
    assert len(re.findall(r" all-reduce(?:-start)?\(", hlo)) == 1


@needs_gpu_compiler
@pytest.mark.filterwarnings("error")
def test_products_for_gpus_are_those_of_cublas_unless_asked_for():
    """The compiler's own kernels have to be tuned on a GPU; not tuned, they are 50 times slower."""
    lowered = mapped().lower(*types((512, 256), (256, 128)))
    assert "__cublas" in lowered.compile("gpu:h100:8").as_text()
    options = {"xla_gpu_enable_triton_gemm": True}
    own = lowered.compile("gpu:h100:8", compiler_options=options).as_text()
    assert "__cublas" not in own
    assert "__triton" in own


@needs_gpu_compiler
def test_program_that_does_not_fit_in_the_memory_of_a_gpu():
    with refused(
        "memory of one device", "88.00 GiB needed", "at most 74.51 GiB", "split these arrays"
    ):
        mapped().lower(*types((2**20, 2**18), (2**18, 2**15))).compile("gpu:h100:8")


# ------------------------------------------------------------------------- a compiler that fails


def worker(tmp_path, monkeypatch, code):
    """Puts a script in the place of the process that compiles."""
    script = tmp_path / "worker.py"
    script.write_text('import os, sys\nprint(\'{"phase": "compiling"}\', flush=True)\n' + code)
    monkeypatch.setattr(subprocess_compiler, "_WORKER", script)
    monkeypatch.setattr(TpuTarget, "module", "")
    return mapped().lower(A, B)


@pytest.mark.subprocess
def test_abort_of_the_compiler_is_an_error(tmp_path, monkeypatch):
    code = """
print("F1121 00:00:00.1 7 spmd.cc:12] Check failed: 1 == 2", file=sys.stderr, flush=True)
print("*** Check failure stack trace: ***", file=sys.stderr, flush=True)
os.abort()
"""
    with refused(
        "target 'tpu:v5e:2x4'",
        "an abort of the compiler in the phase 'compiling': Check failed: 1 == 2",
        "a program that the compiler accepts",
        "try partitioner='shardy'",
    ):
        worker(tmp_path, monkeypatch, code).compile("tpu:v5e:2x4")


@pytest.mark.subprocess
def test_error_of_the_compiler_is_an_error(tmp_path, monkeypatch):
    code = 'print(\'{"failure": "INTERNAL: no"}\')\nsys.exit(1)'
    with refused("target", "an error in the phase 'compiling': INTERNAL: no", "a program", "try"):
        worker(tmp_path, monkeypatch, code).compile("tpu:v5e:2x4")


@pytest.mark.subprocess
def test_defect_of_the_worker_is_shown_whole(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match=r"(?s)a defect of worker\.py.*Traceback.*ZeroDivision"):
        worker(tmp_path, monkeypatch, "1 / 0").compile("tpu:v5e:2x4")


def test_missing_assembler_names_the_command():
    failure = subprocess_compiler.Failure(
        "compiling", "UNAVAILABLE: No PTX compilation provider is", False
    )
    problem = compile_for_target._refusal(failure, Target.parse("gpu:h100:8"), "gspmd")
    assert problem.fix == "run: pip install 'shmap_compiler[gpu]'"


@pytest.mark.parametrize(
    ("message", "demand"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (64.00G) exceeds available HBM (15.75G).",
            memory_report.Demand(64 * 2**30, int(15.75 * 2**30)),
        ),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (8.5T) exceeds available HBM (512M).",
            memory_report.Demand(int(8.5 * 2**40), 512 * 2**20),
        ),
        ("INTERNAL: something else (1G)", None),
    ],
)
def test_message_about_memory_is_read(message, demand):
    assert memory_report.read_demand(message) == demand


# -------------------------------------------------------------------------------------- progress


def test_progress_shows_phase_and_time():
    stream = io.StringIO()
    with Progress("compiling", stream, pace=0.01) as progress:
        progress.phase("lowering")
        while "lowering" not in stream.getvalue():
            pass
    assert re.fullmatch(r"(compiling: 0 s(, phase lowering)?\n)+", stream.getvalue())


def test_progress_of_a_short_step_shows_nothing():
    stream = io.StringIO()
    with Progress("compiling", stream, pace=60):
        pass
    assert stream.getvalue() == ""
