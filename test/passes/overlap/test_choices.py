"""The choosing pass on modules: what it writes for a machine, and what it says of each site."""

import itertools

import jax
import pytest
import shmap_passes
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes import PASSES, PipelineError, parse_pipeline
from shmap_passes.cost.chips import H100_SXM, TPU_V5E, TPU_V5P, TPU_V6E
from shmap_passes.cost.machine import Machine
from shmap_passes.cost.networks import Nodes, Torus
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.choose_overlap import ChooseOverlap
from shmap_passes.overlap.find.row_sums import REDUCE
from shmap_passes.overlap.find.softmax import softmaxes
from shmap_passes.overlap.form import Form, read
from shmap_passes.pipeline import overlap_passes

from shmap_compiler import shard_map

MESH = AbstractMesh((8,), ("i",))
PLACES = tuple(itertools.product(range(2), range(4)))
V5E = Machine(TPU_V5E, Torus((2, 4), (False, False), 50e9), PLACES, True)
V6E = Machine(TPU_V6E, Torus((2, 4), (False, False), 100e9), PLACES, True)
CUBE = tuple(itertools.product(range(2), repeat=3))
V5P = Machine(TPU_V5P, Torus((2, 2, 2), (False,) * 3, 100e9), CUBE, True)
H100 = Machine(
    H100_SXM, Nodes(1, 8, 450e9, 400e9, measured=True), tuple((0, k) for k in range(8)), True
)
SNAKE = (0, 7, 6, 5, 1, 2, 3, 4)


def gather(x, w):
    return jax.lax.all_gather(x, "i", axis=0, tiled=True) @ w


def activated(x, w):
    return jax.nn.silu(gather(x, w))


def scatter(x, w):
    return jax.lax.psum_scatter(x @ w, "i", scatter_dimension=0, tiled=True)


def scatter_of_bytes(x, w):
    product = jax.lax.dot(x, w, preferred_element_type="int32")
    return jax.lax.psum_scatter(product, "i", scatter_dimension=0, tiled=True)


def scatter_of_gathered(x, w):
    return jax.lax.psum_scatter(gather(x, w), "i", scatter_dimension=0, tiled=True)


def scatter_of_contracted(x, w):
    return scatter(x, jax.lax.all_gather(w, "i", axis=0, tiled=True))


def gather_in_a_branch(x, w):
    return jax.lax.cond(w[0, 0] > 0, gather, lambda x, w: gather(x, w * 2), x, w)


def scatter_in_a_loop(x, w):
    """Of as many steps as the largest number asks for."""

    def step(total):
        return scatter(x, w) + total

    total = jax.numpy.zeros((x.shape[0] // 8, w.shape[1]), x.dtype)
    return jax.lax.while_loop(lambda y: jax.lax.pmax(y[0, 0], "i") < 3, step, total)


def scatter_and_product(x, w):
    return scatter(x, w), x[:, :8] @ w[:8]


def scatter_of_activated(x, w):
    return scatter(jax.numpy.tanh(x), w)


def scatter_of_transposed(x, w):
    return scatter(x.T, w)


def scatter_then_gather(x, w, v, u):
    """Between the two is an array that is larger than what either needs."""
    return (scatter(x, w) @ v @ v.T) @ jax.lax.all_gather(u, "i", axis=0, tiled=True)


def scatter_after_loop(x, ws):
    def layer(x, w):
        return jax.numpy.tanh(x @ jax.lax.all_gather(w, "i", axis=1, tiled=True)), None

    return scatter(jax.lax.scan(layer, x, ws)[0].reshape(x.shape), ws[0])


def scatter_in_a_chain(x, w):
    return scatter(x, w) @ w[:8].T


def summed(x, w):
    return jax.lax.psum(x @ w, "i")


def mlp(x, v, w):
    h = jax.nn.gelu(jax.lax.all_gather(x, "i", axis=0, tiled=True) @ v)
    return jax.lax.psum_scatter(h @ w, "i", scatter_dimension=0, tiled=True)


def attention(x, q, k, v):
    """With scores that are larger than the gathered rows."""
    rows = jax.lax.all_gather(x, "i", axis=1, tiled=True)
    return mixed(rows @ q, rows @ k, jax.numpy.tanh(rows @ v))


def attention_block(x, q, k, v, w):
    """Attention up to its sum over the devices."""
    summed = attention(x, q, k, v) @ w
    return jax.lax.psum_scatter(summed, "i", scatter_dimension=1, tiled=True)


def attention_and_sum(x, q, k, v, w):
    return attention(x, q, k, v), jax.lax.psum(w, "i")


def attention_to_others(x, q, k, values):
    """Products that are read before the scores as well."""
    rows = jax.lax.all_gather(x, "i", axis=1, tiled=True)
    queries, keys = rows @ q, rows @ k
    return mixed(queries, keys, values) + keys


def mixed(queries, keys, values):
    scores = jax.nn.softmax(jax.numpy.einsum("bsd,btd->bst", queries, keys))
    return jax.numpy.einsum("bst,btd->bsd", scores, values)


def read_by_product(x, v, w):
    """Rows that one product computes, and only another one reads."""
    return jax.numpy.tanh(gather(x, v)) @ w


def read_twice(x, v, w):
    rows = jax.numpy.tanh(gather(x, v))
    return rows @ w, rows


def logits(x, w):
    """The numbers that a loss over a vocabulary needs; nothing reads the logits as a whole."""
    found = gather(x, w).astype("float32")
    return jax.numpy.exp(found - found.max(-1, keepdims=True)).sum(-1)


def logits_and_result(x, w):
    found = gather(x, w)
    return found.max(-1), found


def normalized(x, w):
    found = (x @ jax.lax.all_gather(w, "i", axis=0, tiled=True)).astype("float32")
    return found * jax.lax.rsqrt((found**2).mean(-1, keepdims=True))


def biased(x, w):
    """The sum over rows, which chunks of columns do not cut."""
    found = x @ jax.lax.all_gather(w, "i", axis=0, tiled=True)
    return found, found.sum(0)


def fsdp(x, ws):
    def layer(x, w):
        w = jax.lax.all_gather(w, "i", axis=0, tiled=True)
        return jax.numpy.tanh(x @ w), None

    return jax.lax.scan(layer, x, ws)[0]


def two_gathers(x, w, y, v):
    return gather(x, w), y @ jax.lax.all_gather(v, "i", axis=0, tiled=True)


def fsdp_with_sums(x, ws, v):
    def layer(x, w):
        h = x @ jax.lax.all_gather(w, "i", axis=1, tiled=True)
        y = jax.lax.psum_scatter(h @ v, "i", scatter_dimension=0, tiled=True)
        return h * y.sum(), None

    return jax.lax.scan(layer, x, ws)[0]


def loop_beside_square(x, ws, a):
    """A loop that keeps what it gathers, and products of as many columns as `a` has rows."""

    def layer(x, w):
        g = jax.lax.all_gather(x, "i", axis=0, tiled=True)
        return x * (g.T @ (g @ w)).sum(), None

    x, _ = jax.lax.scan(layer, x, ws)
    square = a @ a.T
    return x, square @ square @ square


def gradient(x, ws):
    return jax.grad(lambda x, ws: fsdp(x, ws).astype("float32").sum(), (0, 1))(x, ws)


def mlp_gradient(*args):
    return jax.grad(lambda *args: (mlp(*args).astype("float32") ** 2).sum(), (0, 1, 2))(*args)


def gradient_of_each_of_two(*args):
    def loss(x, v, w, s, t):
        return (mlp(mlp(x, v, w), s, t).astype("float32") ** 2).sum()

    return jax.grad(loss, (0, 1, 2, 3, 4))(*args)


def two_of_gathers(x, dy, v):
    """Gathers beside products of each other, sums of rows, and one over devices."""
    g, e = (jax.lax.all_gather(each, "i", axis=0, tiled=True) for each in (x, dy))
    d = (g @ v) * e
    sums = jax.numpy.einsum("rk,rf->kf", g, d), d.sum(0, dtype=d.dtype)
    return jax.lax.psum_scatter(d @ v, "i", tiled=True), *sums


def gated_gradient(x, v, w):
    """The cotangent of the gathered rows is the sum of two products."""

    def loss(x, v, w):
        rows = jax.lax.all_gather(x, "i", axis=0, tiled=True)
        h = jax.nn.silu(rows @ v) * (rows @ (2 * v))
        y = jax.lax.psum_scatter(h @ w, "i", scatter_dimension=0, tiled=True)
        return (y.astype("float32") ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(x, v, w)


def gradient_of_gathered(x, w):
    def loss(x, w):
        found = x @ jax.lax.all_gather(w, "i", axis=0, tiled=True)
        return (found.astype("float32") ** 2).sum()

    return jax.grad(loss, (0, 1))(x, w)


def added_late(x, w):
    """Products of large arrays, each of which needs the one before it."""
    products = []
    for _ in range(3):
        rows = jax.lax.cumsum(x)
        products.append(rows @ w)
        x = x * rows[0, 0]
    return jax.lax.psum_scatter(sum(products[1:], products[0]), "i", tiled=True)


def summed_gradient(x, w):
    y = 2 * summed(x, w)
    return y @ w.T, x.T @ y


def summed_derivative(x, w):
    """The same as JAX derives it: the gradient of w is transposed before it is returned."""

    def loss(x, w):
        return (summed(x, w).astype(jax.numpy.float32) ** 2).sum()

    return jax.grad(loss, (0, 1))(x, w)


def summed_twice(x, w):
    """The gradient of a sum whose cotangents differ between devices."""
    y = 2 * summed(x, w)
    z = jax.lax.psum(y, "i")
    return z @ w.T, x.T @ z


def experts(x, w, v):
    y = jax.lax.all_to_all(x, "i", split_axis=0, concat_axis=1, tiled=True)
    h = jax.nn.gelu(jax.numpy.einsum("ecd,edh->ech", y, w))
    z = jax.numpy.einsum("ech,ehd->ecd", h, v)
    return jax.lax.all_to_all(z, "i", split_axis=1, concat_axis=0, tiled=True)


def experts_gradient(*args):
    return jax.grad(lambda *args: (experts(*args).astype("float32") ** 2).sum(), (0, 1, 2))(*args)


def layers_gradient(x, w, v):
    def layers(x, w, v):
        x = x + experts(x, w, v)
        return x + experts(x, w, v)

    y, back = jax.vjp(layers, x, w, v)
    return back(y)


def recomputed_experts_gradient(*args):
    return jax.grad(
        lambda *args: (jax.checkpoint(experts)(*args).astype("float32") ** 2).sum(), (0, 1, 2)
    )(*args)


def recomputed_layers_gradient(*args):
    def loss(x, w, v):
        def layer(x, _):
            return x + experts(x, w, v), None

        return (jax.lax.scan(jax.checkpoint(layer), x, None, length=4)[0] ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(*args)


def recomputed_outputs_gradient(*args):
    """The gradient also needs what is exchanged back, and all of it before its own exchanges.

    The last layer has no forward pass except the one in its gradient.
    """

    @jax.checkpoint
    def layer(x, w, v):
        return jax.numpy.sin(jax.numpy.cumsum(experts(x, w, v), 0))

    def loss(x, w1, v1, w2, v2):
        return layer(layer(x, w1, v1), w2, v2).astype("float32").sum()

    return jax.grad(loss, (0, 1, 2, 3, 4))(*args)


def kept_layers_gradient(x, w, v):
    """The loss needs all of the first layer before its gradient begins."""

    def loss(x, w, v):
        return jax.numpy.sin(experts(jax.numpy.cumsum(x, 0), w, v).astype("float32").sum())

    return jax.grad(loss, (0, 1, 2))(x, w, v)


EXPERTS = (P(None, "i"), P("i"), P("i"))
MANY = ((64, 7680, 2048), (64, 2048, 1408), (64, 1408, 2048))
EXPERTS_SIZES = ((8, 8192, 4096), (8, 4096, 2048), (8, 2048, 4096))
MLP = (P("i"), P(None, "i"), P("i"))
SUMMED = (P(None, "i"), P("i"))
TWO = (*MLP, *MLP[1:])


def attention_of_heads(q, k, v):
    scores = jax.numpy.einsum("bhtd,bhsd->bhts", q, k)
    return jax.numpy.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores), v)


def attention_to_tokens_before(q, k, v):
    scores = jax.numpy.einsum("bhtd,bhsd->bhts", q, k)
    is_before = jax.numpy.tri(scores.shape[-1], dtype=bool)
    shares = jax.nn.softmax(jax.numpy.where(is_before, scores, -jax.numpy.inf))
    return jax.numpy.einsum("bhts,bhsd->bhtd", shares, v)


def attention_of_groups(q, k, v):
    """Of queries of which two share keys."""
    q = q.reshape(2, 2, 2, 4096, 64)
    scores = jax.numpy.einsum("bgqtd,bgsd->bgqts", q, k)
    return jax.numpy.einsum("bgqts,bgsd->bgqtd", jax.nn.softmax(scores), v)


def attention_with_instructions(q, k, v):
    with set_xla_metadata(_scheduling_group_id="1"):
        return attention_of_heads(q, k, v)


PROGRAMS = {
    attention_of_heads: (P(), P(), ((2, 4, 4096, 128),) * 3),
    attention_to_tokens_before: (P(), P(), ((4, 4, 2048, 128),) * 3),
    attention_of_groups: (P(), P(), ((2, 4, 4096, 64), *((2, 2, 4096, 64),) * 2)),
    attention_with_instructions: (P(), P(), ((2, 4, 4096, 128),) * 3),
    summed_twice: (SUMMED, SUMMED, ((4096, 8192), (8192, 4096))),
    summed_gradient: (SUMMED, SUMMED, ((8192, 16384), (16384, 8192))),
    summed_derivative: (SUMMED, SUMMED, ((8192, 16384), (16384, 8192))),
    mlp_gradient: (MLP, MLP, ((16384, 4096), (4096, 16384), (16384, 4096))),
    gradient_of_gathered: ((P("i"), P("i")), (P("i"), P("i")), ((32768, 8192), (8192, 8192))),
    gradient_of_each_of_two: (TWO, TWO, ((32768, 4096), *((4096, 16384), (16384, 4096)) * 2)),
    two_of_gathers: (
        (P("i"), P("i"), P()),
        (P("i"), P(), P()),
        ((65536, 4096),) * 2 + ((4096, 4096),),
    ),
    gated_gradient: (MLP, MLP, ((16384, 4096), (4096, 16384), (16384, 4096))),
    added_late: ((P(None, "i"), P("i")), P("i"), ((8192, 65536), (65536, 4096))),
    layers_gradient: (EXPERTS, EXPERTS, EXPERTS_SIZES),
    recomputed_experts_gradient: (EXPERTS, EXPERTS, EXPERTS_SIZES),
    recomputed_layers_gradient: (EXPERTS, EXPERTS, EXPERTS_SIZES),
    recomputed_outputs_gradient: (
        (*EXPERTS, *EXPERTS[1:]),
        (*EXPERTS, *EXPERTS[1:]),
        (*MANY, *MANY[1:]),
    ),
    kept_layers_gradient: (EXPERTS, EXPERTS, EXPERTS_SIZES),
    experts_gradient: (EXPERTS, EXPERTS, EXPERTS_SIZES),
    gather: ((P("i"), P()), P(), ((16384, 8192), (8192, 2048))),
    activated: ((P("i"), P()), P(), ((16384, 8192), (8192, 2048))),
    scatter: ((P(None, "i"), P("i")), P("i"), ((16384, 16384), (16384, 8192))),
    scatter_of_bytes: ((P(None, "i"), P("i")), P("i"), ((16384, 8192), (8192, 4096))),
    gather_in_a_branch: ((P("i"), P()), P(), ((16384, 8192), (8192, 2048))),
    scatter_in_a_loop: (SUMMED, P("i"), ((16384, 16384), (16384, 8192))),
    scatter_of_gathered: ((P("i"), P()), P("i"), ((16384, 8192), (8192, 2048))),
    scatter_of_contracted: ((P(), P("i")), P("i"), ((16384, 8192), (8192, 2048))),
    scatter_and_product: (SUMMED, (P("i"), P()), ((16384, 16384), (16384, 8192))),
    scatter_of_activated: (SUMMED, P("i"), ((16384, 16384), (16384, 8192))),
    scatter_of_transposed: ((P("i"), P("i")), P("i"), ((16384, 16384), (16384, 8192))),
    scatter_in_a_chain: (SUMMED, P("i"), ((16384, 16384), (16384, 8192))),
    scatter_then_gather: (
        (P(None, "i"), P("i"), P(), P("i")),
        P("i"),
        ((16384, 16384), (16384, 8192), (8192, 65536), (8192, 8192)),
    ),
    scatter_after_loop: ((P("i"), P(None, None, "i")), P("i"), ((65536, 4096), (8, 4096, 4096))),
    summed: (SUMMED, P(), ((8192, 16384), (16384, 8192))),
    mlp: (
        (P("i"), P(None, "i"), P("i")),
        P("i"),
        ((16384, 4096), (4096, 16384), (16384, 4096)),
    ),
    attention: (
        (P(None, "i"), *(P(None, "i"),) * 3),
        P(None, None, "i"),
        ((8, 4096, 2048), *((2048, 4096),) * 3),
    ),
    attention_block: (
        (P(None, "i"), *(P(None, "i"),) * 3, P("i")),
        P(None, "i"),
        ((8, 4096, 2048), *((2048, 4096),) * 3, (4096, 2048)),
    ),
    attention_and_sum: (
        (P(None, "i"), *(P(None, "i"),) * 3, P()),
        (P(None, None, "i"), P()),
        ((8, 4096, 2048), *((2048, 4096),) * 3, (8192, 4096)),
    ),
    attention_to_others: (
        (P(None, "i"), *(P(None, "i"),) * 2, P(None, None, "i")),
        P(None, None, "i"),
        ((8, 4096, 2048), *((2048, 4096),) * 2, (8, 4096, 4096)),
    ),
    read_by_product: (MLP, P(), ((65536, 512), (512, 8192), (8192, 256))),
    read_twice: (MLP, (P(), P(None, "i")), ((65536, 512), (512, 8192), (8192, 256))),
    logits: ((P("i"), P(None, "i")), P(), ((8192, 2048), (2048, 32768))),
    logits_and_result: (
        (P("i"), P(None, "i")),
        (P(), P(None, "i")),
        ((16384, 2048), (2048, 32768)),
    ),
    normalized: ((P("i"), P("i")), P("i"), ((32768, 4096), (4096, 4096))),
    biased: ((P("i"), P("i")), (P("i"), P("i")), ((32768, 4096), (4096, 4096))),
    fsdp: ((P("i"), P(None, "i")), P("i"), ((32768, 4096), (8, 4096, 4096))),
    loop_beside_square: (
        (P("i"), P(), P()),
        (P("i"), P()),
        ((16384, 4096), (4, 4096, 2048), (12288, 64)),
    ),
    two_gathers: (
        (P("i"), P(), P("i"), P("i")),
        (P(), P("i")),
        ((8192, 4096), (4096, 1024), (32768, 8192), (8192, 8192)),
    ),
    fsdp_with_sums: (
        (P("i"), P(None, None, "i"), P()),
        P("i"),
        ((16384, 4096), (8, 4096, 4096), (4096, 4096)),
    ),
    gradient: (
        (P("i"), P(None, "i")),
        (P("i"), P(None, "i")),
        ((32768, 4096), (8, 4096, 4096)),
    ),
}


def body(fun, dtype="bfloat16", sizes=None):
    ins, out, shapes = PROGRAMS[fun]
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape in sizes or shapes]
    mapped = shard_map(fun, mesh=MESH, in_specs=ins, out_specs=out, check_vma=False)
    return mapped.lower(*types).as_text("body")


def chosen(fun, machine, dtype="bfloat16", sizes=None, **options):
    """The choices in a program, and the forms that the pass writes."""
    text = machine.text if machine else ""
    pass_ = ChooseOverlap(machine=text, **options)
    with shmap_passes.make_context():
        module = ir.Module.parse(body(fun, dtype, sizes))
        found = pass_.choices(module.operation.opview)
        shmap_passes.run(module, [pass_])
        assert [c.form for c in pass_.choices(module.operation.opview)] == [c.form for c in found]
        # A block and the gather at its beginning are two sites with one operation.
        written = {c.site.op: read(c.site.op) for c in pass_.choices(module.operation.opview)}
        chosen_forms = [c.form for c in found if c.is_rewritten]
        forms = [form for form in written.values() if form is not None]
        assert [form for form in forms if form.name != "together"] == chosen_forms
        return [(c.site.pattern, c.form, c.plan) for c in found]


def test_products_that_are_added_are_left_if_what_the_first_ones_read_would_stay():
    ((_, form, plan),) = chosen(added_late, V6E, effort="try")
    assert form is None
    assert plan.reason == "columns would need 128 MiB of memory more than the plain program"


def test_what_is_transposed_for_a_sum_needs_as_much_memory_as_a_whole():
    """By libtpu 192 MiB, and 322 with chunks of both."""
    found = chosen(gradient_of_gathered, V6E)
    assert [form.name if form else None for _, form, _ in found] == [None, "columns"]


def test_only_sums_leaves_everything_else():
    forms = {p: form.name for p, form, _ in chosen(mlp_gradient, V5E, may_round=True) if form}
    assert forms == {"row-block": "row-chunks"}
    found = chosen(mlp_gradient, V5E, may_round=True, only_sums=True)
    assert {pattern for pattern, _, _ in found} == {"product-scatter"}
    assert {form.name for _, form, _ in found if form} == {"partial-sums"}


@pytest.mark.parametrize("machine", [V5E, V6E, V5P, H100])
@pytest.mark.parametrize("dtype", ["float16", "int16", "complex64", "float8_e4m3fn"])
@pytest.mark.parametrize("may_round", [False, True])
def test_products_of_types_whose_speed_is_unknown_are_left(dtype, machine, may_round):
    choices = chosen(two_of_gathers, machine, dtype, may_round=may_round)
    assert not any(form for _, form, _ in choices)
    element = {"float16": "f16", "int16": "i16", "complex64": "complex<f32>"}.get(dtype)
    if machine is V5E and element:
        reason = f"the speed of products of {element} is not known for a TPU v5e"
        assert {plan.reason for _, _, plan in choices} == {reason}


@pytest.mark.parametrize(
    ("fun", "machine", "dtype", "form"),
    [
        (gather, V5E, "int8", "ring"),
        (gather, V6E, "int8", "ring"),
        (gather, V5P, "uint8", "ring"),
        (gather, H100, "int8", None),
        (scatter_of_bytes, V5E, "int8", "partial-sums"),
        (scatter_of_bytes, V5P, "int8", "partial-sums"),
        (scatter_of_bytes, H100, "int8", None),
    ],
)
def test_products_of_bytes(fun, machine, dtype, form):
    """Their speed is that of the factors, not of the sums of i32 that are sent."""
    ((_, found, plan),) = chosen(fun, machine, dtype)
    assert (found and found.name) == form
    if form is None:
        assert "the speed of products of i8 is not known" in plan.reason


def test_a_module_in_which_nothing_is_chosen_stays_as_it_is():
    """Also what it calls, which is inlined where something is chosen."""
    with shmap_passes.make_context():
        module = ir.Module.parse(body(activated))
        before = str(module)
        assert "call @" in before
        shmap_passes.run(module, [ChooseOverlap()])
        assert str(module) == before
        shmap_passes.run(module, [ChooseOverlap(effort="force")])
        assert "call @" not in str(module)


def test_functions_that_call_one_another_many_times_stay():
    tensor = "tensor<16384x2048xbf16>"
    calls = [
        f"func.func private @f{k}(%x: {tensor}) -> {tensor} {{\n"
        f"%y = call @f{k + 1}(%x) : ({tensor}) -> {tensor}\nreturn %y : {tensor}\n}}"
        for k in range(1000)
    ]
    last = f"func.func private @f1000(%x: {tensor}) -> {tensor} {{\nreturn %x : {tensor}\n}}"
    text = body(activated).replace("call @silu", "call @f0")
    end = text.rindex("}")
    with shmap_passes.make_context():
        module = ir.Module.parse("\n".join([text[:end], *calls, last, text[end:]]))
        shmap_passes.run(module, [ChooseOverlap(effort="force")])
        assert "call @f0" in str(module)


def test_a_ring_follows_the_chips():
    ((pattern, form, plan),) = chosen(gather, V5E)
    assert (pattern, form) == ("gather-product", Form("ring", 0, SNAKE, "allocate"))
    assert (plan.plain, plan.expected) == pytest.approx((5.23e-3, 3.01e-3), rel=1e-2)


def test_rows_on_gpus():
    ((_, form, _),) = chosen(gather, H100)
    assert form == Form("rows", form.parts, empty="allocate", in_place=False)
    assert form.parts in (4, 8)


def test_a_block_on_gpus_is_rewritten_as_a_whole():
    choices = {pattern: (form, plan) for pattern, form, plan in chosen(mlp, H100)}
    form, plan = choices.pop("gather-scatter")
    assert form == Form("stages", 4, empty="allocate", in_place=False)
    assert (plan.plain, plan.expected) == pytest.approx((1.60e-3, 1.30e-3), rel=1e-2)
    assert set(choices) == {"gather-product", "product-scatter"}
    for form, plan in choices.values():
        assert form is None
        assert plan.reason == "it is in a block whose rows are computed in stages"


@pytest.mark.parametrize("fun", [mlp_gradient, gated_gradient])
def test_a_gradient_on_gpus_whose_sums_may_be_rounded_is_computed_in_stages(fun):
    sizes = ((65536, 4096), (4096, 16384), (16384, 4096))
    first, (pattern, form, plan), *others = chosen(fun, H100, sizes=sizes, may_round=True)
    assert pattern == "row-block"
    assert form == Form("row-stages", 4, empty="allocate", in_place=False)
    assert 0.85 < plan.expected / plan.plain < 1
    assert [choice[1] for choice in (first, *others)] == [None] * 4
    small = ((4096, 1024), (1024, 4096), (4096, 1024))
    for choices in (
        chosen(fun, H100, sizes=small, may_round=True),
        chosen(fun, H100, sizes=sizes),
    ):
        assert not any(form and form.name == "row-stages" for _, form, _ in choices)


def sums(fun, sizes):
    """The forms of sums on GPUs, and the plans."""
    choices = chosen(fun, H100, sizes=sizes)
    found = [(form, plan) for pattern, form, plan in choices if pattern == "product-scatter"]
    return [form and form.name for form, _ in found], [plan for _, plan in found]


@pytest.mark.parametrize("width", [4096, 8192])
def test_a_sum_on_gpus_beside_the_gradient_of_weights_is_left(width):
    """XLA hides it beside the product that becomes the gradient, as it is."""
    sizes = ((32768, width), (width, 4 * width), (4 * width, width))
    forms, (exposed, hidden) = sums(mlp_gradient, sizes)
    assert forms == ["columns", None]
    assert hidden.reason == "it runs beside products that do not depend on it"
    assert hidden.plain < 0.8 * exposed.plain


def test_on_gpus_gradients_of_weights_hide_the_last_sum_only():
    forms, _ = sums(gradient_of_each_of_two, None)
    assert forms == ["columns"] * 3 + [None]


def test_parts_of_a_block_have_forms_of_their_own_elsewhere():
    found = [(pattern, form and form.name) for pattern, form, _ in chosen(mlp, V5E, may_round=True)]
    assert found == [("gather-product", "ring"), ("product-scatter", "partial-sums")]
    found = [
        (pattern, form and form.name) for pattern, form, _ in chosen(mlp, None, effort="force")
    ]
    assert found == [("gather-product", "ring"), ("product-scatter", "partial-sums")]


def test_loops_on_gpus_have_barriers():
    choices = {pattern: form for pattern, form, _ in chosen(fsdp, H100)}
    assert choices["gathering-loop"] == Form("unroll", empty="allocate", in_place=False)


@pytest.mark.parametrize(("fun", "name"), [(gather, "rows"), (scatter, "columns")])
def test_gpus_never_get_rings(fun, name):
    sizes = ((64, 64), (64, 64))
    ((_, form, _),) = chosen(fun, H100, sizes=sizes, effort="force")
    assert form == Form(name, empty="allocate", in_place=False)


def test_f32_is_narrowed_on_tpus_if_products_read_no_more():
    assert [form.narrow for _, form, _ in chosen(gather, V5E, "float32")] == [True]
    with jax.default_matmul_precision("highest"):
        assert not any(form and form.narrow for _, form, _ in chosen(gather, V5E, "float32"))


@pytest.mark.parametrize(
    ("precision", "milliseconds"),
    # What the schedules of libtpu take, computing and sending.
    [
        (None, 3.21 + 2.35),
        ("default", 3.21 + 2.35),
        ("highest", 17 + 4.7),
        ("BF16_BF16_F32_X3", 8.51 + 4.7),
    ],
)
def test_products_of_f32_are_computed_as_precisely_as_they_ask_for(precision, milliseconds):
    sizes = ((16384, 8192), (8192, 2048))
    with jax.default_matmul_precision(precision):
        ((_, form, plan),) = chosen(gather, V5E, "float32", sizes)
    assert plan.plain * 1e3 == pytest.approx(milliseconds, rel=0.07)
    assert form.narrow == (precision in (None, "default"))


def test_sums_are_rounded_only_if_they_may_be():
    ((_, form, plan),) = chosen(scatter, V5E)
    assert form is None
    assert "see overlap_rounding" in plan.reason
    ((_, form, _),) = chosen(scatter, V5E, may_round=True)
    assert form == Form("partial-sums", 4, SNAKE, "allocate")


def test_sums_of_f32_go_round_although_that_is_another_order():
    ((_, form, _),) = chosen(scatter, V6E, "float32")
    assert form == Form("partial-sums", 4, SNAKE, "allocate")
    ((_, form, _),) = chosen(scatter, None, "float32", effort="force")
    assert form.name == "partial-sums"
    assert not form.wide


@pytest.mark.parametrize(("machine", "ordered"), [(V5E, False), (V5P, True)])
def test_products_come_before_partial_sums_where_arrays_would_stay_beside_them(machine, ordered):
    """On v5p libtpu needs 663 MiB for a gradient of an MLP block without it, and 642 with it."""
    ((_, form, _),) = chosen(scatter_and_product, machine, may_round=True)
    assert (form.name, form.ordered) == ("partial-sums", ordered)


@pytest.mark.parametrize(
    ("fun", "ordered"),
    [
        (scatter, []),
        (scatter_and_product, ["columns", "partial-sums"]),
        # Pieces of partial sums compute the activation, and what is transposed is not stored.
        (scatter_of_activated, ["columns"]),
        (scatter_of_transposed, []),
        # The second product needs the sum.
        (scatter_in_a_chain, []),
    ],
)
def test_products_are_ordered_only_where_there_are_others_or_something_to_store(fun, ordered):
    forms = [
        form
        for may_round in (False, True)
        for _, form, _ in chosen(fun, V5P, effort="try", may_round=may_round)
    ]
    assert [form.name for form in forms] == ["columns", "partial-sums"]
    assert [form.name for form in forms if form.ordered] == ordered


def test_in_a_program_with_an_unrolled_loop_products_may_be_ordered():
    choices = chosen(scatter_after_loop, V5P, effort="force", may_round=True)
    forms = {pattern: form for pattern, form, _ in choices if form}
    assert forms["gathering-loop"].name == "unroll"
    assert forms["product-scatter"].ordered


def test_sums_of_long_products_are_sent_as_f32():
    sizes = ((16384, 32768), (32768, 8192))
    ((_, form, _),) = chosen(scatter, V5E, sizes=sizes, effort="try")
    assert form is None
    ((_, form, _),) = chosen(scatter, None, effort="force")
    assert form == Form("partial-sums", wide=True)


def test_sums_that_may_not_be_rounded_are_chunks_where_there_are_sparse_cores():
    ((_, form, _),) = chosen(scatter, V5P)
    assert form == Form("columns", 16, empty="allocate", in_place=False)


def test_a_product_is_summed_in_chunks_where_there_are_sparse_cores():
    ((pattern, form, _),) = chosen(summed, V6E)
    expected = Form("columns", 16, empty="allocate")
    assert (pattern, form) == ("product-sum", expected)
    ((_, form, plan),) = chosen(summed, V5E)
    assert form is None
    assert plan.reason == "libtpu for a TPU v5e computes nothing beside sums over devices"
    ((_, form, plan),) = chosen(summed, H100)
    assert form is None
    assert "columns would take" in plan.reason


def test_what_is_in_an_unrolled_loop_stays_as_it_is():
    choices = {pattern: (form, plan) for pattern, form, plan in chosen(fsdp, V5E)}
    assert choices["gathering-loop"][0] == Form("unroll", empty="allocate", barriers=False)
    inside = choices["gather-contraction"]
    assert inside[0] is None
    assert "a loop that is unrolled" in inside[1].reason


def test_a_gather_is_no_ring_beside_another_if_that_saves_little():
    others = ((32768, 8192), (8192, 8192))
    first, second = chosen(two_gathers, V6E, sizes=((8192, 4096), (4096, 512), *others))
    assert first[1] is None
    assert "ring would take 94% of the plain time, more than 90%" in first[2].reason
    assert second[1].name == "columns"


def test_a_gather_in_an_unrolled_loop_is_no_ring_beside_a_sum():
    choices = {
        pattern: (form, plan) for pattern, form, plan in chosen(fsdp_with_sums, V6E, may_round=True)
    }
    assert {pattern: form and form.name for pattern, (form, _) in choices.items()} == {
        "gathering-loop": "unroll",
        "gather-product": None,
        "product-scatter": "columns",
    }
    assert "a loop that is unrolled" in choices["gather-product"][1].reason


FORCED = {"effort": "force", "may_round": True}


@pytest.mark.parametrize(
    ("fun", "machine", "options", "forms"),
    [
        (scatter_of_gathered, V6E, {"may_round": True}, ["ring", None]),
        (scatter_of_gathered, V5P, {}, ["ring", None]),
        # In chunks the gather would take more time.
        (scatter_of_contracted, V6E, {"may_round": True}, [None, "partial-sums"]),
        (scatter_of_contracted, V6E, FORCED, [None, "partial-sums"]),
        (scatter_of_gathered, None, FORCED, ["ring", None]),
        (scatter_of_contracted, None, FORCED, ["columns", None]),
    ],
)
def test_a_product_is_in_one_form(fun, machine, options, forms):
    found = chosen(fun, machine, **options)
    assert [form and form.name for _, form, _ in found] == forms
    if options is FORCED:
        (reason,) = (plan.reason for _, form, plan in found if form is None)
        assert "a product of it is computed in pieces for a " in reason


@pytest.mark.parametrize(
    ("fun", "machine", "sizes", "reason"),
    [
        (gather_in_a_branch, V5E, None, "ring needs all devices, and only some may reach it"),
        (scatter_in_a_loop, V5E, None, "partial-sums needs all devices"),
        (gather, V5E, ((8, 64), (64, 64)), "each device has one row of the gathered dimension"),
        (gather, H100, ((8 * 2049, 64), (64, 64)), "cannot be cut into equal pieces for rows"),
        (normalized, V5E, ((64, 64), (64, 6)), "cannot be cut into equal pieces for columns"),
        (summed, V5E, ((9, 64), (64, 6)), "cannot be cut into equal pieces for columns"),
        (scatter, H100, ((64, 64), (64, 6)), "cannot be cut into equal pieces for columns"),
    ],
)
def test_forms_that_cannot_be_built_are_not_chosen(fun, machine, sizes, reason):
    found = chosen(fun, machine, sizes=sizes, **FORCED)
    assert {form for _, form, _ in found} == {None}
    assert all(reason in plan.reason for _, _, plan in found)
    if sizes is None:
        found = chosen(fun, machine, may_round=True)
        assert {form for _, form, _ in found} == {None}
        assert all(reason in plan.reason for _, _, plan in found)


@pytest.mark.parametrize("machine", [V5E, V6E])
def test_loops_that_share_stacks_are_unrolled_together(machine):
    loops = [c for c in chosen(gradient, machine) if c[0] == "gathering-loop"]
    assert [form for _, form, _ in loops] == 2 * [Form("unroll", empty="allocate", barriers=False)]
    # On v5e the second one would gain too little by itself: nothing runs beside reduce_scatters.
    gains = loops[1][2].expected <= 0.85 * loops[1][2].plain
    assert gains == (machine == V6E)


def test_loops_that_share_stacks_are_left_if_one_cannot_be_unrolled_whole():
    sizes = ((32768, 4096), (32, 4096, 4096))
    loops = [c for c in chosen(gradient, V5E, sizes=sizes) if c[0] == "gathering-loop"]
    assert [form for _, form, _ in loops] == [None, None]
    assert all("too many steps to be unrolled whole" in plan.reason for _, _, plan in loops)
    sizes = ((32768, 4096), (17, 4096, 4096))
    loops = [c for c in chosen(gradient, V5E, sizes=sizes) if c[0] == "gathering-loop"]
    assert all("17 steps are not a multiple" in plan.reason for _, _, plan in loops)


def test_small_programs_are_left_unless_forced():
    sizes = ((64, 64), (64, 64))
    ((_, form, plan),) = chosen(gather, V5E, sizes=sizes)
    assert form is None
    assert "less than 20" in plan.reason
    ((_, form, _),) = chosen(gather, V5E, sizes=sizes, effort="force")
    assert form == Form("ring", 0, SNAKE, "allocate")
    ((_, form, _),) = chosen(gather, None, sizes=sizes, effort="force")
    assert form == Form("ring", 0, (), "zeros")


def test_machines_of_another_size_or_unknown_ones():
    other = Machine(TPU_V5E, Torus((2, 2), (False, False), 50e9), PLACES[:4], True)
    for machine in (None, other):
        ((_, form, plan),) = chosen(gather, machine)
        assert form is None
        assert plan.reason == "the figures of its devices are not known"


def test_the_pass_and_its_text_are_the_same():
    pass_ = ChooseOverlap(machine=V6E.text, effort="try", may_round=True)
    assert parse_pipeline(f"builtin.module({pass_})", PASSES) == (pass_,)


def test_a_machine_that_cannot_be_read():
    with pytest.raises(PipelineError, match="shmap-choose-overlap: option machine: no description"):
        ChooseOverlap(machine="{}")


def test_the_pipeline_has_the_pass_if_asked_for():
    pass_ = ChooseOverlap(effort="force")
    names = [each.name for each in shmap_passes.pipeline(overlap=pass_)]
    assert names.index(pass_.name) == names.index("shmap-normalize-all-to-all") + 1
    assert pass_.name not in [each.name for each in shmap_passes.pipeline()]


def test_a_ring_beside_which_the_gathered_array_is_kept_needs_more_memory():
    """libtpu needs 724 MiB for this gradient with rings, and 320 for the plain one."""
    forms = {"try": [None, "columns"] * 2, "force": ["ring", "columns"] * 2}
    for effort, names in forms.items():
        choices = chosen(mlp_gradient, V5P, effort=effort, may_round=effort == "force")
        assert [form and form.name for _, form, _ in choices] == names
        if effort == "try":
            reason = choices[0][2].reason
            assert reason == "ring would need 32 MiB of memory more than the plain program"


@pytest.mark.parametrize("machine", [V5E, V5P])
def test_chunks_and_partial_sums_need_memory_while_they_are_computed(machine):
    """As libtpu says of `plain transformer` of benchmarks/overlap_examples.py."""
    forms = [form for _, form, _ in chosen(scatter_then_gather, machine, may_round=True)]
    assert [form and form.name for form in forms] == ["partial-sums", "columns"]


@pytest.mark.parametrize("machine", [V6E, V5P])
def test_a_sum_that_is_put_together_needs_more_memory_unless_it_is_a_result(machine):
    """libtpu for v5p needs 193 MiB for this gradient in chunks, and 128 for the plain one."""
    ((_, form, _),) = chosen(summed, machine)
    assert (form.name, form.parts, form.in_place) == ("columns", 16, True)
    ((_, form, plan),) = chosen(summed_gradient, machine)
    assert form is None
    assert plan.reason == "columns would need 48 MiB of memory more than the plain program"


@pytest.mark.parametrize(
    ("machine", "sizes", "more"),
    [
        # By libtpu 32 MiB in the plain program and 44 in chunks, and 128 and 153.
        (V5P, ((4096, 8192), (8192, 4096)), 12),
        (V5P, ((8192, 32768), (32768, 8192)), 48),
        # 192 and 240, 32 and 33, and 128 and 112.
        (V6E, ((8192, 32768), (32768, 8192)), 48),
        (V6E, ((4096, 32768), (32768, 4096)), None),
        (V6E, ((8192, 65536), (65536, 4096)), None),
    ],
)
def test_a_result_that_is_transposed_has_its_place_unless_the_sum_may_stay_in_vmem(
    machine, sizes, more
):
    ((_, form, plan),) = chosen(summed_derivative, machine, sizes=sizes)
    if more is None:
        assert form.name == "columns"
    else:
        assert plan.reason == f"columns would need {more} MiB of memory more than the plain program"


def test_a_sum_that_is_left_takes_the_place_of_what_is_summed():
    """libtpu for v5p needs 45 MiB for this gradient in chunks, and 32 for the plain one."""
    ((_, form, plan),) = chosen(summed_twice, V5P)
    assert form is None
    assert plan.reason == "columns would need 12 MiB of memory more than the plain program"


@pytest.mark.parametrize("machine", [V5E, V6E, V5P])
@pytest.mark.parametrize("fun", [mlp_gradient, gated_gradient])
def test_a_gradient_whose_sums_may_be_rounded_is_computed_in_chunks_of_rows(fun, machine):
    first, (pattern, form, plan), *others = chosen(fun, machine, may_round=True)
    assert (pattern, form.name, form.parts) == ("row-block", "row-chunks", 4)
    assert 0.7 < plan.expected / plan.plain < 0.9
    assert [choice[1] for choice in (first, *others)] == [None] * 4
    small = ((2048, 512), (512, 2048), (2048, 512))
    large = ((65536, 1024), (1024, 16384), (16384, 1024))
    for sizes in (small, large):
        patterns = chosen(fun, machine, sizes=sizes, may_round=True)
        assert [form for pattern, form, _ in patterns if pattern == "row-block"] == [None]


@pytest.mark.parametrize(
    ("machine", "may_round", "form"),
    [
        (V5E, True, Form("sequence-sums", 4, SNAKE, empty="allocate")),
        (V6E, False, Form("sequences", 4, empty="allocate", ordered=True)),
        (V5P, False, Form("sequences", 4, empty="allocate")),
    ],
)
def test_attention_is_computed_some_sequences_at_a_time(machine, may_round, form):
    choices = chosen(attention_block, machine, may_round=may_round)
    found = {pattern: (form, plan) for pattern, form, plan in choices if pattern != "softmax"}
    assert found.keys() == {"gather-product", "sequence-block", "product-scatter"}
    assert found.pop("sequence-block")[0] == form
    for form, plan in found.values():
        assert form is None
        assert plan.reason == "it is in a block that is computed in chunks of sequences"


def test_sequences_whose_sums_may_not_be_rounded_are_left_on_v5e():
    plans = {pattern: plan for pattern, _, plan in chosen(attention_block, V5E)}
    assert plans["sequence-block"].reason == "sums of bf16 would be rounded at each hop"


def test_sequences_are_left_where_rings_are_expected_to_be_faster():
    sizes = (2, 4096, 8192), *((8192, 8192),) * 4
    plans = {p: plan for p, _, plan in chosen(attention_block, V5E, sizes=sizes, may_round=True)}
    assert plans["gather-product"].name == "ring"
    assert plans["sequence-block"].name is None
    assert plans["sequence-block"].reason.startswith("chunks of sequences would take")


def test_sequences_are_left_without_a_place_in_memory():
    sizes = (16, 256, 1024), *((1024, 1024),) * 4
    plans = {p: plan for p, _, plan in chosen(attention_block, V6E, sizes=sizes)}
    reason = "it would need a place in memory for what is in VMEM in the plain program"
    assert plans["sequence-block"].reason == reason


@pytest.mark.parametrize("machine", [V5E, V6E, V5P])
def test_the_maximum_of_a_softmax_is_stored(machine):
    small = ((2, 4, 2048, 128),) * 3
    ((pattern, form, plan),) = chosen(attention_of_heads, machine)
    assert (pattern, form.name) == ("softmax", "stored-maximum")
    assert plan.expected < plan.plain
    assert chosen(attention_of_heads, machine, only_sums=True)
    assert chosen(attention_of_heads, machine, sizes=small) == []
    assert chosen(attention_with_instructions, machine) == []


@pytest.mark.parametrize("machine", [V5E, V6E, V5P])
def test_softmax_of_shorter_rows_has_a_mask_on_v5e_and_v5p(machine):
    sizes = ((4, 4, 2048, 128),) * 3
    assert chosen(attention_of_heads, machine, sizes=sizes) == []
    assert bool(chosen(attention_to_tokens_before, machine)) == (machine != V6E)


@pytest.mark.parametrize("machine", [V5E, V6E, V5P])
def test_softmax_of_groups_of_short_queries_is_left_on_v5e_and_v5p(machine):
    assert bool(chosen(attention_of_groups, machine)) == (machine == V6E)


def test_the_maximum_of_each_chunk_of_sequences_is_stored():
    """A chunk is computed as a copy of the operations of the block, with the forms on them."""

    def left(module):
        return [*softmaxes(find_ops(module.operation, [REDUCE]))]

    *rewriting, storing = overlap_passes()
    with shmap_passes.make_context():
        module = ir.Module.parse(body(attention_block))
        shmap_passes.run(module, [ChooseOverlap(machine=V6E.text), *rewriting])
        assert left(module)
        shmap_passes.run(module, [storing])
        assert not left(module)


def test_softmax_is_left_on_other_devices():
    for machine in (H100, None):
        assert chosen(attention_of_heads, machine) == []
    ((_, form, _),) = chosen(attention_of_heads, None, effort="force")
    assert form.name == "stored-maximum"


def test_forms_that_are_forced_are_those_of_gathers_and_sums():
    patterns = {pattern for pattern, _, _ in chosen(attention_block, V6E, effort="force")}
    assert patterns == {"gather-product", "product-scatter", "softmax"}


@pytest.mark.parametrize(
    ("rows", "hidden", "is_left"),
    [
        # In f32, with 1024 hidden features on each of 16 devices: 4.85, 9.0.
        (4096, 8192, False),
        # With 3584 on each of four devices: 5.08, 2.53.
        (1024, 28672, True),
    ],
)
def test_chunks_of_few_rows_wait_to_add_to_gradients_of_wide_weights(rows, hidden, is_left):
    """Milliseconds, and those of the plain program."""
    sizes = (rows, 8192), (8192, hidden), (hidden, 8192)
    found = chosen(mlp_gradient, V5E, sizes=sizes, may_round=True)
    ((_, form, plan),) = (each for each in found if each[0] == "row-block")
    assert (form is None, plan.expected > plan.plain) == (is_left, is_left)


@pytest.mark.parametrize("fun", [mlp_gradient, gated_gradient])
def test_rows_of_f32_are_computed_in_chunks_if_they_are_sent_as_bf16(fun):
    sizes = ((32768, 2048), (2048, 8192), (8192, 2048))
    forms = [form for _, form, _ in chosen(fun, V5E, "float32", sizes, may_round=True) if form]
    assert [form.name for form in forms] == ["row-chunks"]
    with jax.default_matmul_precision("highest"):
        blocks = [
            (form, plan.reason)
            for pattern, form, plan in chosen(fun, V5E, "float32", sizes, may_round=True)
            if pattern == "row-block"
        ]
    assert blocks == [(None, "chunks of rows of f32 were not measured")]


OTHER = ((8, 16384, 2048), (8, 2048, 4096), (8, 4096, 2048))
WIDER = ((8, 8192, 2048), (8, 2048, 8192), (8, 8192, 2048))
WIDEST = ((8, 8192, 4096), (8, 4096, 14336), (8, 14336, 4096))


@pytest.mark.parametrize(
    ("machine", "sizes", "share"),
    [
        # What the schedules of libtpu 0.0.50.1 take of the time of the plain programs.
        (V5E, EXPERTS_SIZES, 0.64),
        (V6E, EXPERTS_SIZES, 0.75),
        (V5P, EXPERTS_SIZES, 0.70),
        (V5E, OTHER, 0.69),
        (V6E, OTHER, 0.65),
        (V5P, OTHER, 0.88),
        (V5E, WIDER, 0.83),
        (V6E, WIDER, 0.75),
    ],
)
def test_a_gradient_of_experts_whose_sums_may_be_rounded_is_exchanged_in_chunks(
    machine, sizes, share
):
    ((pattern, form, plan),) = chosen(experts_gradient, machine, sizes=sizes, may_round=True)
    assert (pattern, form.name, form.parts) == ("exchange-block", "summed-chunks", 4)
    assert form.ordered == (machine is V6E)
    assert abs(plan.expected / plan.plain - share) < 0.11


FEW = ((8, 512, 4096), (8, 4096, 2048), (8, 2048, 4096))
UNEVEN = ((8, 8 * 1026, 4096), *FEW[1:])
SMALL = ((8, 4096, 2048), (8, 2048, 1024), (8, 1024, 2048))
NO_OPTIONS = Machine(V5E.chip, V5E.network, V5E.places)


@pytest.mark.parametrize(
    ("fun", "machine", "options", "reason"),
    [
        (experts_gradient, V5E, {"may_round": False}, "overlap_rounding"),
        (experts_gradient, NO_OPTIONS, {}, "shmap_compiler.compiler_options"),
        (experts_gradient, V5E, {"sizes": FEW}, "would have 128 rows"),
        (experts_gradient, V5E, {"sizes": UNEVEN}, "of rows, 1026, is not a multiple of 4"),
        (experts_gradient, V5E, {"sizes": SMALL}, "what is exchanged stays in VMEM"),
        (experts_gradient, V5E, {"sizes": WIDEST}, "would take 98% of the plain time"),
        (experts_gradient, V6E, {"sizes": WIDEST}, "would take 96% of the plain time"),
        (experts_gradient, V5P, {"sizes": WIDER}, "would take 106% of the plain time"),
        (experts_gradient, V5E, {"dtype": "float32"}, "exchanged f32 were not measured"),
        (recomputed_experts_gradient, V5E, {}, "not computed together with its forward pass"),
        (layers_gradient, V5E, {}, "several layers would need more memory"),
        (layers_gradient, V5E, {"sizes": MANY}, "several layers would need more memory"),
    ],
)
def test_gradients_of_experts_that_are_left(fun, machine, options, reason):
    found = chosen(fun, machine, **{"may_round": True, **options})
    ((form, plan),) = [each[1:] for each in found if each[0] == "exchange-block"]
    assert form is None
    assert reason in plan.reason


@pytest.mark.parametrize(
    ("fun", "sizes", "blocks"),
    [
        (recomputed_layers_gradient, MANY, 1),
        (recomputed_outputs_gradient, (*MANY, *MANY[1:]), 2),
    ],
)
def test_experts_of_a_device_take_turns_if_a_gradient_computes_them_again(fun, sizes, blocks):
    """Nothing is added up, so sums need not be rounded in another order."""
    found = chosen(fun, V5E, sizes=sizes)
    forms = sorted((pattern, form and form.name) for pattern, form, _ in found)
    assert forms == [("all-to-all", "chunks"), *[("exchange-block", "summed-chunks")] * blocks]


def test_experts_of_a_device_are_left_if_a_gradient_keeps_what_was_exchanged():
    ((pattern, form, plan),) = chosen(kept_layers_gradient, V5E, sizes=MANY)
    assert (pattern, form) == ("exchange-block", None)
    assert "the gradient keeps what was exchanged before" in plan.reason


@pytest.mark.parametrize(
    ("fun", "machine", "is_left"),
    [
        # With chunks libtpu needs 385 MiB for 177, 833 for 897, 835 for 770 and 897 for 768.
        (recomputed_experts_gradient, V5E, True),
        (recomputed_layers_gradient, V5E, False),
        (recomputed_layers_gradient, V6E, True),
        (recomputed_layers_gradient, V5P, True),
    ],
)
def test_exchanges_of_experts_that_a_gradient_computes_again(fun, machine, is_left):
    found = chosen(fun, machine, may_round=True)
    ((form, plan),) = [each[1:] for each in found if each[0] == "all-to-all"]
    assert (form is None) == is_left
    assert not is_left or "would need more memory, as a gradient exchanges again" in plan.reason


@pytest.mark.parametrize(("columns", "has_ring"), [(4096, False), (1024, True)])
def test_a_ring_takes_the_place_of_a_gathered_array_at_the_peak(columns, has_ring):
    """If the scatter of a block needs as much as its gather, a ring alone needs more than both."""
    sizes = ((65536, 4096), (4096, 32768), (32768, columns))
    (_, ring, plan), (_, sums, _) = chosen(mlp, V5E, sizes=sizes)
    assert sums is None
    assert bool(ring) == has_ring
    assert has_ring or "of memory more" in plan.reason


@pytest.mark.parametrize(
    ("machine", "rows", "has_ring"),
    [(V5E, 8192, True), (V5P, 8192, True), (V6E, 8192, False), (V6E, 512, True)],
)
def test_no_ring_slows_down_a_large_sum_that_is_left(machine, rows, has_ring):
    """On v6e attention took 1.30 ms with a ring alone, and 1.16 without, with a sum of 64 MiB."""
    sizes = (*PROGRAMS[attention][2], (rows, 4096))
    (_, form, _), *_ = chosen(attention_and_sum, machine, sizes=sizes)
    assert bool(form) == has_ring


@pytest.mark.parametrize("machine", [V5E, V6E, V5P])
def test_a_gathered_array_stays_until_something_needs_its_last_product(machine):
    """libtpu computes the values after the scores, and a ring computes them before."""
    (_, form, _), *_ = chosen(attention, machine)
    assert form.name == "ring"
    (_, form, plan), *_ = chosen(attention_to_others, machine)
    assert form is None
    assert plan.reason == "ring would need 32 MiB of memory more than the plain program"


@pytest.mark.parametrize(
    ("machine", "dtype", "sizes", "more"),
    [
        (V5E, "bfloat16", (65536, 512, 8192, 256), 112),
        (V5P, "bfloat16", (16384, 512, 8192, 256), 28),
        (V6E, "bfloat16", (65536, 2048, 32768, 512), 384),
        # The first product does not become part of the second one, which reads too many of its
        # numbers, or has too many columns.
        (V5E, "bfloat16", (65536, 2048, 8192, 256), None),
        (V5P, "bfloat16", (32768, 1024, 16384, 512), None),
        # Rows of 64 MiB stay in VMEM; those in f32 are stored as bf16.
        (V5E, "bfloat16", (32768, 512, 8192, 256), None),
        (V5E, "float32", (32768, 512, 8192, 256), None),
        (V5E, "float32", (65536, 512, 8192, 256), 80),
    ],
)
def test_rows_that_the_plain_program_does_not_store_need_memory(machine, dtype, sizes, more):
    """libtpu needs 128 MiB for the first one with a ring, and else 0; 36 and 16 for the second."""
    rows, inner, between, columns = sizes
    shapes = ((rows, inner), (inner, between), (between, columns))
    ((_, form, plan),) = chosen(read_by_product, machine, dtype, shapes)
    assert bool(form) == (more is None)
    assert (
        form or plan.reason == f"ring would need {more} MiB of memory more than the plain program"
    )
    (_, form, _), *_ = chosen(read_twice, machine, dtype, shapes)
    assert form is not None


@pytest.mark.parametrize(("machine", "is_left"), [(V5E, True), (V6E, False)])
def test_products_in_one_kernel_stay_together_where_they_take_longer_apart(machine, is_left):
    """libtpu for v5e takes 0.28 ms for both, and 0.37 with a ring: 0.13 and 0.10 for v6e."""
    shapes = ((16384, 256), (256, 16384), (16384, 256))
    ((_, form, plan),) = chosen(read_by_product, machine, sizes=shapes)
    assert (form is None) == is_left
    assert form or "would not be in one kernel with the next one" in plan.reason
    (_, form, _), *_ = chosen(read_twice, machine, sizes=shapes)
    assert form is not None
    # If the second product is in pieces as well, the rows between pieces stay in VMEM.
    shapes = ((32768, 256), (256, 8192), (8192, 256))
    forms = [form for _, form, _ in chosen(mlp, V5E, sizes=shapes, may_round=True)]
    assert [form and form.name for form in forms] == ["ring", "partial-sums"]


@pytest.mark.parametrize("machine", [V5E, V5P])
@pytest.mark.parametrize(
    ("fun", "is_left"), [(logits, True), (logits_and_result, False), (biased, False)]
)
def test_results_that_are_only_reduced_are_not_put_together(fun, machine, is_left):
    """With a ring libtpu takes 1.91 ms for 1.38 on v5e, and 0.79 for 0.59."""
    ((_, form, plan),) = chosen(fun, machine)
    assert (form is None) == is_left
    assert form or "its results are reduced where they are computed" in plan.reason


@pytest.mark.parametrize("machine", [V5E, V5P])
def test_chunks_of_columns_are_not_reduced_along_them(machine):
    """libtpu takes 1.49 ms for 1.32 on v5e, and 0.70 for 0.65 on v5p."""
    ((_, form, plan),) = chosen(normalized, machine)
    assert form is None
    assert "its results are reduced where they are computed" in plan.reason


def test_on_gpus_results_may_be_reduced():
    ((_, form, plan),) = chosen(logits, H100, sizes=((65536, 8192), (8192, 16384)))
    assert form is not None, plan.reason


@pytest.mark.parametrize(("rows", "has_ring"), [(64, False), (12288, True)])
@pytest.mark.parametrize("machine", [V5E, V5P])
def test_a_loop_may_need_as_much_memory_as_its_function_elsewhere(machine, rows, has_ring):
    sizes = ((16384, 4096), (4, 4096, 1024), (rows, 64))
    ((_, form, plan),) = chosen(loop_beside_square, machine, sizes=sizes)
    assert bool(form) == has_ring
    assert has_ring or plan.reason == "ring would need 32 MiB of memory more than the plain program"


def test_partial_sums_have_their_buffers_in_the_place_of_a_ring():
    """libtpu for v5e needs no temporaries for it: 0.78 ms with both, and 0.91 without the ring."""
    mesh, shapes = AbstractMesh((2, 2), ("o", "i")), ((8192, 1024), (1024, 8192), (8192, 1024))
    mapped = shard_map(mlp, mesh=mesh, in_specs=PROGRAMS[mlp][0], out_specs=P("i"), check_vma=False)
    types = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in shapes]
    places = tuple(itertools.product(range(2), repeat=2))
    machine = Machine(TPU_V5E, Torus((2, 2), (False, False), 50e9), places, True)
    with shmap_passes.make_context():
        module = ir.Module.parse(mapped.lower(*types).as_text("body")).operation.opview
        found = ChooseOverlap(machine=machine.text, may_round=True).choices(module)
        assert [each.form and each.form.name for each in found] == ["ring", "partial-sums"]
