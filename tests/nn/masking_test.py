"""Which tokens are kept, and that they come back to where they were."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.nn import masking

B, L, NUM = 3, 12, 5
X = np.random.default_rng(0).normal(size=(B, L, 4)).astype(np.float32)


def choose(seed=0, batch=B, tokens=L, num=NUM):
    return jax.device_get(masking.choose(jax.random.key(seed), batch, tokens, num))


@pytest.mark.parametrize(("tokens", "mask", "num"), [(64, 0.75, 16), (64, 0.0, 64), (49, 0.75, 12), (10, 0.95, 1), (2, 0.5, 1)])
def test_as_many_are_kept_as_the_share_leaves(tokens, mask, num):
    assert masking.num_kept(tokens, mask) == num


@pytest.mark.parametrize(
    ("mask", "message"),
    [(1.0, "must lie in"), (-0.1, "must lie in"), (float("nan"), "must lie in"), (0.97, "leaves none"), (0.01, "drops none")],
)
def test_a_share_that_leaves_nothing_is_refused(mask, message):
    with pytest.raises(UserError, match=rf"^config\.model\.mask={mask} {message}"):
        masking.num_kept(9, mask)


def test_each_example_keeps_so_many_tokens_of_its_own_choice():
    kept = choose(batch=50)
    assert kept.order.shape == (50, NUM)
    assert all(len(set(row)) == NUM for row in kept.order.tolist())
    assert len({frozenset(row) for row in kept.order.tolist()}) > 40
    np.testing.assert_array_equal(kept.weight.sum(1), np.full(50, NUM))
    assert all(set(np.flatnonzero(weight)) == set(row) for weight, row in zip(kept.weight, kept.order.tolist(), strict=True))


def test_another_key_makes_another_choice():
    assert (choose(0).order != choose(1).order).any()


def test_every_token_is_kept_as_often_as_any_other():
    often = choose(batch=20_000).weight.mean(0)
    np.testing.assert_allclose(often, NUM / L, atol=5 * np.sqrt(NUM / L * (1 - NUM / L) / 20_000))


def test_kept_tokens_come_back_to_where_they_were_and_the_others_are_zero():
    kept = masking.choose(jax.random.key(3), B, L, NUM)
    few = np.asarray(kept.gather(jnp.asarray(X)))
    np.testing.assert_array_equal(few, np.stack([x[rows] for x, rows in zip(X, np.asarray(kept.order), strict=True)]))
    np.testing.assert_array_equal(kept.scatter(jnp.asarray(few)), X * np.asarray(kept.weight)[..., None])
