"""Experts that choose their tokens: against a plain loop, against one dense layer, and what each serves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen.distributed.mesh import Layout, make_mesh
from tinygen.errors import UserError
from tinygen.nn import experts
from tinygen.nn.experts import Experts
from tinygen.nn.feed_forward import SwiGLU
from tinygen.train_step import merge, split

B, L, D, F, E = 3, 12, 8, 16, 4
X = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)


def make(capacity=2.0, num=E, precision="float32"):
    """Experts whose weights are all drawn."""
    layer = Experts(D, F, experts=num, capacity=capacity, precision=precision, rngs=nnx.Rngs(0))
    graph, state = nnx.split(layer)
    numbers = np.random.default_rng(1)
    return nnx.merge(graph, jax.tree.map(lambda leaf: jnp.asarray(0.5 * numbers.normal(size=leaf.shape), jnp.float32), state))


def by_hand(layer, x, k):
    """Example by example, expert by expert, token by token, in float64."""
    weights = {name: np.asarray(value, np.float64) for name, value in (
        ("router", layer.router[...]), *((f"{part}.{kind}", getattr(getattr(layer, part), kind)[...]) for part in ("gate", "up", "down")
        for kind in ("kernel", "bias")),
    )}  # fmt: skip
    out = np.zeros(x.shape)
    for b, tokens in enumerate(x.astype(np.float64)):
        scores = np.exp(tokens @ weights["router"])
        P = scores / scores.sum(1, keepdims=True)
        for e in range(P.shape[1]):
            for t in np.argsort(-P[:, e])[:k]:
                gate, up = (tokens[t] @ weights[f"{part}.kernel"][e] + weights[f"{part}.bias"][e] for part in ("gate", "up"))
                out[b, t] += P[t, e] * ((gate / (1 + np.exp(-gate)) * up) @ weights["down.kernel"][e] + weights["down.bias"][e])
    return out


@pytest.mark.parametrize(("capacity", "k"), [(0.5, 1), (1.0, 3), (2.0, 6), (4.0, 12)])
def test_it_is_the_plain_loop(capacity, k):
    layer = make(capacity)
    np.testing.assert_allclose(jax.jit(lambda x: layer(x)[0])(X), by_hand(layer, X, k), rtol=1e-4, atol=1e-4)


def test_every_expert_serves_exactly_k_tokens_of_each_example_those_it_likes_best():
    P, share, index = jax.device_get(jax.jit(make(1.0).route)(X))
    assert index.shape == share.shape == (B, E, 3)
    for b in range(B):
        for e in range(E):
            assert len(set(index[b, e])) == 3
            assert set(index[b, e]) == set(np.argsort(-P[b, :, e])[:3])
    np.testing.assert_allclose(P.sum(-1), 1, rtol=1e-6)


def test_tokens_are_ranked_where_their_probabilities_saturate_at_0_and_1():
    """Router scores so far apart that float32 has P = 1 for one expert and 0 for the others, of all tokens: no ties all the same."""
    layer = make(1.0)
    scores = np.random.default_rng(3).normal(size=(1, L, E)) * 5
    scores[:, :, 0] += 200
    layer.router[...] = jnp.eye(D)[:, :E]
    x = np.zeros((1, L, D), np.float32)
    x[..., :E] = scores
    P, share, index = jax.device_get(jax.jit(layer.route)(x))
    assert set(np.unique(P)) == {0, 1}
    np.testing.assert_array_equal(share, np.take_along_axis(np.swapaxes(P, 1, 2), index, 2))
    exact = x[..., :E].astype(np.float64)
    log_odds = [exact[0, :, e] - np.logaddexp.reduce(np.delete(exact[0], e, 1), 1) for e in range(E)]
    for e in range(E):
        assert index[0, e].tolist() == np.argsort(-log_odds[e])[:3].tolist()


def test_tokens_that_no_expert_has_chosen_get_exactly_nothing():
    layer = make(0.5)
    out, index = jax.device_get(jax.jit(lambda x: (layer(x)[0], layer.route(x)[2]))(X))
    for b in range(B):
        chosen = set(index[b].ravel())
        assert 0 < len(chosen) < L
        assert {t for t in range(L) if out[b, t].any()} == chosen


def test_experts_that_share_their_weights_are_one_dense_layer_where_each_takes_all():
    layer, dense = make(E), SwiGLU(D, F, precision="float32", rngs=nnx.Rngs(2))
    for part in ("gate", "up", "down"):
        for kind in ("kernel", "bias"):
            one = getattr(getattr(dense, part), kind)
            getattr(getattr(layer, part), kind)[...] = jnp.broadcast_to(one[...], (E, *one.shape))
    np.testing.assert_allclose(jax.jit(lambda x: layer(x)[0])(X), jax.jit(dense)(X), rtol=1e-5, atol=1e-5)


def test_an_example_does_not_depend_on_another():
    layer = make(1.0)
    run = jax.jit(lambda x: layer(x)[0])
    changed = X.copy()
    changed[1] = -changed[1]
    np.testing.assert_array_equal(np.delete(run(changed), 1, 0), np.delete(run(X), 1, 0))
    assert np.abs(run(changed) - run(X))[1].max() > 0.1


def test_every_weight_learns():
    graph, state = nnx.split(make(2.0))
    gradient = jax.jit(jax.grad(lambda state: jnp.sum(jnp.sin(nnx.merge(graph, state)(X)[0]))))(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        each = np.abs(leaf).reshape(E, -1).max(1) if leaf.shape[0] == E else np.abs(leaf).max(0)
        assert (each > 0).all(), path  # of every expert, or of the router for every expert


def test_what_it_tells_of_the_routing():
    layer = make(1.0)
    told = jax.device_get(jax.jit(lambda x: layer(x)[1])(X))
    P, _, index = jax.device_get(jax.jit(layer.route)(X))
    assert set(told) == set(experts.STATS)
    assert told["routing_entropy"] == pytest.approx(-np.mean(np.sum(P * np.log(P), -1)) / np.log(E), rel=1e-5)
    assert told["routing_served"] == pytest.approx(np.mean([len(set(each.ravel())) / L for each in index]))
    assert told["routing_least"] == pytest.approx(E * P.mean((0, 1)).min(), rel=1e-5)
    layer.router[...] = jnp.zeros((D, E)).at[:, 0].set(-1e4 * jnp.sign(jnp.asarray(X[0, 0])))
    assert jax.jit(lambda x: layer(x)[1])(X[:1, :1])["routing_least"] == 0  # a dead expert is seen


def test_the_router_is_exact_whatever_the_precision_of_the_rest():
    exact, rounded = (jax.device_get(jax.jit(make(precision=precision).route)(X))[0] for precision in ("float32", "bfloat16"))
    np.testing.assert_array_equal(exact, rounded)


@pytest.mark.parametrize(("data", "tensor"), [(1, 4), (3, 2)])
def test_experts_that_are_spread_over_a_mesh_give_the_same(data, tensor):
    graph, params, _ = split(make(1.0))
    mesh = make_mesh(dict(data=data, fsdp=1, tensor=tensor), jax.devices()[: data * tensor])
    layout = Layout(mesh, Experts.SHARDING, 1)
    shardings = layout.shardings({"params": {"experts": params}})["params"]["experts"]
    assert {shardings[name][kind].spec[0] for name in ("gate", "up", "down") for kind in ("kernel", "bias")} == {"tensor"}
    expected = jax.jit(lambda params: merge(graph, params, {})(X)[0])(params)
    with jax.set_mesh(mesh):
        spread = jax.device_put(params, shardings)
        found = jax.jit(lambda params, x: merge(graph, params, {})(x)[0])(spread, jax.device_put(X, layout.batch))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("num", "capacity", "tokens", "message"),
    [
        (-1, 2.0, 16, "experts=-1 must be 0"),
        (8, 0.0, 16, "capacity=0.0 must lie above 0"),
        (8, 9.0, 16, "capacity=9.0 must lie above 0 and at most at config.model.experts=8"),
        (8, float("nan"), 16, "capacity=nan must lie"),
        (8, 1.0, 7, "gives 8 experts less than one token each of an image's 7"),
    ],
)
def test_experts_that_cannot_be_or_that_have_nothing_to_do_are_refused(num, capacity, tokens, message):
    with pytest.raises(UserError, match=message) as refused:
        experts.check(num, capacity, tokens)
    assert "\n" not in str(refused.value)
    experts.check(8, 1.0, 8)
    experts.check(0, 0.0, 1)


@pytest.mark.parametrize(("tokens", "num", "capacity", "k"), [(64, 8, 2.0, 16), (3, 8, 2.0, 1), (7, 2, 2.0, 7), (49, 8, 1.0, 6)])
def test_how_many_tokens_an_expert_takes(tokens, num, capacity, k):
    assert experts.num_taken(tokens, num, capacity) == k


@pytest.mark.parametrize(("tokens", "num", "capacity", "taken"), [(100, 1, 0.29, 29), (100, 4, 1.16, 29), (64, 8, 2.0, 16)])
def test_an_expert_takes_what_its_formula_says_though_binary_fractions_fall_short(tokens, num, capacity, taken):
    assert experts.num_taken(tokens, num, capacity) == taken
