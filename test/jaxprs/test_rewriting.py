"""The walk that all rewrites of nested programs share."""

import gc
import weakref

import jax
import jax.numpy as jnp
from jax import lax

from shmap_compiler.base.jax_compat import replace_jaxpr
from shmap_compiler.jaxprs.contents import equations, holders, primitives
from shmap_compiler.jaxprs.rewriting import Rewriter, copy_equations, named, renamed

X = jnp.arange(4.0)


class SinToCos(Rewriter):
    def concerned(self, eqns):
        return [k for k, eqn in enumerate(eqns) if eqn.primitive is lax.sin_p]

    def equation(self, eqn, names):
        if eqn.primitive is lax.sin_p:
            return [eqn.replace(primitive=lax.cos_p)]
        return super().equation(eqn, names)


class WithoutNeg(Rewriter):
    """Reads the operand of a negation wherever its result was read."""

    def concerned(self, eqns):
        return [k for k, eqn in enumerate(eqns) if eqn.primitive is lax.neg_p]

    def equation(self, eqn, names):
        if eqn.primitive is lax.neg_p:
            names[eqn.outvars[0]] = eqn.invars[0]
            return []
        return super().equation(eqn, names)


def run(jaxpr, *args):
    return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args)


def test_contents_of_a_rewritten_program_are_those_that_a_walk_finds():
    def f(x):
        x = jnp.cos(-x)
        return jax.lax.scan(lambda c, _: (jnp.sin(-c), None), jnp.sin(x), length=2)[0]

    for rewriter in (SinToCos(), WithoutNeg()):
        rewritten = rewriter.jaxpr(jax.make_jaxpr(f)(X))
        walked = replace_jaxpr(rewritten)
        assert holders(rewritten) == holders(walked)
        assert primitives(rewritten) == primitives(walked)


def test_programs_at_any_depth_are_rewritten():
    def nested(x):
        return lax.fori_loop(
            0, 2, lambda _, c: lax.cond(c[0] > 9, jnp.tanh, jax.jit(jnp.sin), c), x
        )

    jaxpr = jax.make_jaxpr(nested)(X)
    new = SinToCos().jaxpr(jaxpr)
    names = [eqn.primitive.name for eqn in equations(new)]
    assert "cos" in names
    assert "sin" not in names
    assert jnp.array_equal(run(new, X)[0], jnp.cos(jnp.cos(X)))
    assert "sin" in [eqn.primitive.name for eqn in equations(jaxpr)]  # as it was


def test_what_does_not_change_is_the_same_object():
    jaxpr = jax.make_jaxpr(lambda x: (jax.jit(jnp.sin)(x), jax.jit(jnp.tanh)(x)))(X)
    assert WithoutNeg().jaxpr(jaxpr) is jaxpr
    new = SinToCos().jaxpr(jaxpr)
    assert new.eqns[0] is not jaxpr.eqns[0]
    assert new.eqns[1] is jaxpr.eqns[1]


def test_shared_programs_stay_shared():
    inner = jax.jit(jnp.sin)
    jaxpr = jax.make_jaxpr(lambda x: inner(inner(x)))(X)
    (first,), (second,) = holders(SinToCos().jaxpr(jaxpr)).values()
    assert first is second


def test_results_are_renamed():
    jaxpr = jax.make_jaxpr(lambda x: (-x, jnp.sin(-x)))(X)
    new = WithoutNeg().jaxpr(jaxpr)
    assert [eqn.primitive.name for eqn in new.eqns] == ["sin"]
    same, sine = run(new, X)
    assert jnp.array_equal(same, X)
    assert jnp.array_equal(sine, jnp.sin(X))


def test_a_program_is_rewritten_once_as_long_as_it_lives():
    rewriter = SinToCos()
    shared = jax.jit(jnp.sin)
    one, other = (jax.make_jaxpr(lambda x, y=y: (shared(x), -x * y))(X) for y in (1, 2))
    first, second = (rewriter.jaxpr(each).eqns[0].params["jaxpr"] for each in (one, other))
    assert first is second
    assert rewriter.jaxpr(one) is rewriter.jaxpr(one)
    unchanged = jax.make_jaxpr(jnp.tanh)(X)
    assert rewriter.jaxpr(unchanged) is rewriter.jaxpr(unchanged) is unchanged
    references = [weakref.ref(each) for each in (one, other, unchanged, rewriter.jaxpr(one))]
    del one, other, unchanged
    jax.clear_caches()
    gc.collect()
    assert [each() for each in references] == [None] * 4


def test_copies_of_equations():
    """Results get the names that are given, or new ones; literals stay."""
    template = jax.make_jaxpr(lambda x: jnp.sin(x * 2) + 1)(X)
    outer = jax.make_jaxpr(lambda x: jnp.tanh(x))(X)
    result = outer.eqns[0].outvars[0]
    names = {template.jaxpr.outvars[0]: result, template.jaxpr.invars[0]: outer.jaxpr.invars[0]}
    copies = copy_equations(template.eqns, names, source_info=outer.eqns[0].source_info)
    assert copies[-1].outvars == [result]
    assert not {*template.eqns[0].outvars} & {*copies[0].outvars}
    assert all(eqn.source_info is outer.eqns[0].source_info for eqn in copies)


def test_atoms_without_another_name_stay():
    (eqn,) = jax.make_jaxpr(lambda x: x + 1)(X).eqns
    var, literal = eqn.invars
    assert named(literal, {}) is literal
    assert named(var, {}) is var
    assert renamed(eqn, {}) is eqn
