"""load: every broken file is refused with an ArtifactError, before anything is made of it."""

import functools
import io
import json
import operator
import pickle
import random
import zipfile
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import ArtifactError, Executable, Portable, load, shard_map

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(8, dtype=np.float32)
WEIGHTS = jnp.arange(1000.0) / 7


def body(tree, mode):
    return {"y": lax.psum(tree["x"], "j") * WEIGHTS[:1] + len(mode)}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The bytes of a lowered and of a compiled program."""
    folder = tmp_path_factory.mktemp("saved")
    mapped = shard_map(body, mesh=MESH, in_specs=(P("i"), None), out_specs=P("i"))
    lowered = mapped.lower({"x": X}, "mode")
    lowered.save(folder / "portable")
    lowered.compile().save(folder / "executable")
    return {kind: (folder / kind).read_bytes() for kind in ("portable", "executable")}


both_kinds = pytest.mark.parametrize("kind", ["portable", "executable"])


def contents(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(data, change=lambda parts: None, **fields):
    """A file whose parts `change` changes, and whose header has other fields; None removes one."""
    parts = contents(data)
    header = json.loads(parts["header.json"])
    for path, value in fields.items():
        *outer, last = path.split("__")
        target = header
        for name in outer:
            target = target[name]
        if value is REMOVED:
            del target[last]
        else:
            target[last] = value
    parts["header.json"] = json.dumps(header).encode()
    change(parts)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return file.getvalue()


REMOVED = object()


def refused(path, match=""):
    return pytest.raises(ArtifactError, match=rf"(?s)file '{path}'.*{match or 'needed: '}.*fix: ")


def test_a_whole_file_loads(files, tmp_path):
    for kind, data in files.items():
        (tmp_path / "f").write_bytes(rewritten(data))
        program = load(tmp_path / "f", kind=kind)
        assert isinstance(program, Portable if kind == "portable" else Executable)


@both_kinds
def test_a_flipped_bit_is_refused_or_without_effect(files, kind, tmp_path):
    data, path, rng = files[kind], tmp_path / "f", random.Random(0)
    # The directory and the borders of parts are the fewest bytes with the most effects.
    places = rng.sample(range(len(data) * 8), 100)
    places += [rng.randrange(max(0, len(data) - 700), len(data)) * 8 + k % 8 for k in range(150)]
    places += [rng.randrange(60) * 8 + k % 8 for k in range(20)]
    harmless = 0
    for place in places:
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            load(path)
        except ArtifactError as error:
            assert "needed: " in str(error)  # noqa: PT017
        else:
            # What zip stores for others: times, rights, versions.
            assert contents(bytes(changed)) == contents(data)
            harmless += 1
    assert harmless < len(places) / 2


@both_kinds
def test_a_file_that_ends_early_is_refused(files, kind, tmp_path):
    data, path = files[kind], tmp_path / "f"
    for size in (0, 1, 20, 200, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with refused(path):
            load(path)


@both_kinds
def test_a_missing_or_cut_part_is_refused(files, kind, tmp_path):
    path = tmp_path / "f"
    for name in contents(files[kind]):
        if name == "hlo.txt":
            continue  # a text of any length

        def cut(parts, name=name):
            parts[name] = parts[name][: len(parts[name]) // 2]

        for change in (lambda parts, name=name: parts.pop(name), cut):
            path.write_bytes(rewritten(files[kind], change))
            with refused(path):
                load(path)


# Any text, list of texts, or spec is possible there.
FREE = (
    "who",
    "name",
    "in_paths",
    "platform",
    "target",
    "out_specs",
    "out_tree",
    "versions",
    "backend",
)
ODD = (None, True, -1, 7, 0.5, "k", [], [7], ["k"], [[]], {}, {"i": 4}, [None, None], REMOVED)


@both_kinds
def test_an_odd_header_is_refused_or_read(files, kind, tmp_path):
    header = json.loads(contents(files[kind])["header.json"])
    fields = [name for name in header if name not in ("costs", "memory", "places", "signature")]
    fields += [f"signature__{name}" for name in header["signature"]]
    path, refusals = tmp_path / "f", 0
    for name in fields:
        for value in ODD:
            path.write_bytes(rewritten(files[kind], **{name: value}))
            try:
                load(path)
            except ArtifactError:
                refusals += 1
            else:
                parts = name.split("__")
                written = functools.reduce(operator.getitem, parts, header)
                assert repr(written) == repr(value) or parts[-1] in FREE, (name, value)
    assert refusals > 0.8 * len(fields) * len(ODD)


@pytest.mark.parametrize(
    ("name", "value"), [("in_specs", []), ("out_tree", ["tuple", None, []])], ids=["specs", "tree"]
)
def test_a_number_of_arrays_that_does_not_fit_is_refused(files, name, value, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(rewritten(files["portable"], **{f"signature__{name}": value}))
    with refused(path, f"'{name}' for 0 arrays in its header.*needed: "):
        load(path)


def test_a_deep_structure_is_refused(files, tmp_path):
    deep = True
    for _ in range(102):
        deep = ["tuple", None, [deep]]
    path = tmp_path / "f"
    path.write_bytes(rewritten(files["portable"], signature__out_tree=deep))
    with refused(path, "a structure of too many levels"):
        load(path)

    def deepest(parts):
        parts["header.json"] = b"[" * 100_000 + b"]" * 100_000

    path.write_bytes(rewritten(files["portable"], deepest))
    with refused(path):
        load(path)


def test_a_deep_structure_is_not_saved(tmp_path):
    deep = X
    for _ in range(110):
        deep = [deep]
    lowered = shard_map(lambda x: x, mesh=MESH, in_specs=P("i"), out_specs=P("i")).lower(deep)
    with pytest.raises(ArtifactError, match="more than 100 levels"):
        lowered.save(tmp_path / "f")


def test_sizes_are_checked_before_parts_are_read(files, tmp_path):
    path = tmp_path / "f"
    zeros = b"\0" * 5_000_000

    def bomb(parts):
        parts["constants/0"] = zeros

    path.write_bytes(rewritten(files["portable"], bomb))
    with refused(path, "a part 'constants/0' of 5000000 bytes.*needed: 4000 bytes"):
        load(path)

    def claim(data, name, size):
        """The directory says that the part has another size."""
        at = data.rindex(name)  # in the directory at the end
        return data[: at - 22] + size.to_bytes(4, "little") + data[at - 18 :]

    path.write_bytes(claim(files["portable"], b"module.stablehlo", 2**32 - 2))
    with refused(path, "that claims 4294967294 bytes"):
        load(path)


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_kind_portable_never_unpickles(files, tmp_path):
    path = tmp_path / "f"

    def armed(parts):
        parts["program.pickle"] = pickle.dumps(Bomb())

    path.write_bytes(rewritten(files["executable"], armed))
    with refused(path, "a file of kind 'executable'.*needed: a file of kind 'portable'"):
        load(path, kind="portable")
    path.write_bytes(files["portable"])
    with refused(path, "a file of kind 'portable'.*needed: a file of kind 'executable'"):
        load(path, kind="executable")
    with pytest.raises(ArtifactError, match=r"(?s)kind='zip'.*one of 'portable', 'executable'"):
        load(path, kind="zip")


@pytest.mark.parametrize(
    "path", [None, 5, 1.5, [], b"f", object()], ids=lambda path: type(path).__name__
)
def test_what_is_not_a_path_is_refused(path):
    with pytest.raises(ArtifactError, match=r"(?s)needed: .*fix: "):
        load(path)


def test_a_folder_is_refused(tmp_path):
    with refused(tmp_path, "Is a directory"):
        load(tmp_path)


def test_two_parts_of_one_name_are_refused(files, tmp_path):
    path = tmp_path / "f"
    path.write_bytes(files["portable"])
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("module.stablehlo", b"another")
    with refused(path, "two parts of one name"):
        load(path)


def test_a_field_that_no_named_tuple_can_have_is_not_saved(tmp_path):
    @jax.tree_util.register_dataclass
    @dataclass
    class Hidden:
        _x: object

    mapped = shard_map(lambda h: h._x, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    with pytest.raises(ArtifactError, match="a Hidden"):
        mapped.lower(Hidden(X)).save(tmp_path / "f")


def test_weakly_typed_results_are_some_of_the_results(tmp_path):
    path = tmp_path / "f"
    mapped = shard_map(lambda x: (x, 5), mesh=MESH, in_specs=P("i"), out_specs=(P("i"), P()))
    mapped.lower(X).save(path)
    data = path.read_bytes()
    for value in ([2], [-1], [1, 1], ["1"], 1, None):
        path.write_bytes(rewritten(data, signature__weak_results=value))
        with refused(path):
            load(path)
    path.write_bytes(rewritten(data, signature__weak_results=REMOVED))  # as older versions wrote
    assert not any(t.weak_type for t in load(path).signature.out_types)
