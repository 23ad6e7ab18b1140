"""The loss of MeanFlow and improved MeanFlow, and every number that they log, beside NumPy: of a model whose derivatives are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_flow import KEY, SHAPE, column
from mean_flow import improved, meanflow

from tinygen.nn.layers import Output

B = 64
DRAW = np.random.default_rng(0)
BATCH = {
    "x": DRAW.normal(size=(B, *SHAPE)),
    "label": DRAW.integers(0, 4, B),
    "weight": (DRAW.uniform(size=B) < 0.8).astype(float),  # the others fill up a last batch
}
SEEN = np.array([[1.0, 1.0], [0.0, 1.0]]).reshape(1, 2, 2, 1)  # one of four places is masked
POWER, OFFSET = 0.25, 0.01


def factor(cond):
    return column(np.where(cond["keep"], cond["label"] + 1.0, 0.3) if "keep" in cond else cond["label"] + 1.0)


def strength(cond):
    return column(1 - 1 / cond["omega"]) if "omega" in cond else 0.0


def predictions(z, t, r, cond):
    """(u, head): one formula for NumPy and JAX. Weight and interval of guidance are part of both, so it matters what each call is given."""
    t, h = column(t), column(t - r)
    inner = column(cond["t_hi"] - cond["t_lo"]) if "t_lo" in cond else 1.0
    return factor(cond) * (z**2 * (1 + t) + h * z) + strength(cond) * inner * z, factor(cond) * z + t + strength(cond) * inner


def rate(z, t, r, cond, dz):
    """du/dt of `predictions` along dz."""
    t, h = column(t), column(t - r)
    inner = column(cond["t_hi"] - cond["t_lo"]) if "t_lo" in cond else 1.0
    return factor(cond) * (2 * z * dz * (1 + t) + z**2 + z + h * dz) + strength(cond) * inner * dz


def watched(objective, *, train, head, masked):
    """(loss, metrics as means, what the model was shown: a list of (z, t, r, cond, whether it got rngs))."""
    calls = []

    def model(x, t, r=None, cond=None, *, rngs=None):
        u, second = predictions(x, t, r, cond)
        numbers = jax.tree.map(lambda each: np.asarray(getattr(each, "primal", each)), (x, t, r, dict(cond)))
        calls.append((*numbers, rngs is not None))
        weight = jnp.asarray(SEEN / SEEN.mean()) if masked and train else None
        return Output(u, head=second if head else None, weight=weight, stats={"expert": (jnp.float64(3), jnp.float64(2))})

    with jax.enable_x64(True), jax.disable_jit():
        loss, metrics = objective.loss(model, {name: jnp.asarray(value) for name, value in BATCH.items()}, KEY(3), train=train)
    return float(loss), {name: float(total) / float(count) for name, (total, count) in metrics.items()}, calls


def targets(objective, z, t, r, cond, v):
    """(what the network is compared with, the direction of du/dt), as the papers' authors have them."""
    null = {**cond, "keep": np.zeros(B, bool)}
    if hasattr(objective, "omega_max"):
        which = 1 if objective.head else 0
        acts = cond["keep"] & (t >= cond["t_lo"]) & (t <= cond["t_hi"])
        trained = dict(t_lo=np.zeros(B), t_hi=np.ones(B))  # at r = t
        asked = ({**cond, **trained, "omega": np.where(acts, cond["omega"], 1)}, {**null, **trained, "omega": np.ones(B)})
        own, other = (predictions(z, t, t, each)[which] for each in asked)
        return v + column(np.where(acts, 1 - 1 / cond["omega"], 0.0)) * (own - other), own
    own, other = (predictions(z, t, t, each)[0] for each in (cond, null))
    acts = cond["keep"] & (t >= objective.omega_interval[0]) & (t <= objective.omega_interval[1])
    guided = objective.omega * v + (1 - objective.omega - objective.kappa) * other + objective.kappa * own
    target = np.where(column(acts), guided, v)
    return target, target


def mean(values, share=1.0):
    weight = BATCH["weight"] * share
    return (weight * values).sum() / max(weight.sum(), 1e-12)


COMMON = dict(equal=0.4, cond_drop=0.3, power=POWER, offset=OFFSET)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "objective",
    [
        improved(**COMMON, velocity="head", omega_max=4.0),
        improved(**COMMON, velocity="boundary", omega_max=4.0),
        meanflow(**COMMON, omega=1.5, kappa=0.4, omega_interval=(0.2, 0.8)),
    ],
    ids=["head", "boundary", "baked_in"],
)
def test_the_loss_and_every_number_logged_are_numpy_s(objective, train, masked):
    head = getattr(objective, "head", False)
    loss, metrics, calls = watched(objective, train=train, head=head, masked=masked)
    z, t, r, cond, random = next(call for call in calls if len(call[0]) == B)  # calls of 2B are `both`, without a gradient
    assert random == train
    assert 0 < mean(t == r) < 1
    assert cond["keep"].all() == (not train)  # held-out examples keep their conditions
    v = (z - BATCH["x"]) / column(t)
    target, along = targets(objective, z, t, r, cond, v)
    u, second = predictions(z, t, r, cond)
    terms = [(u + column(t - r) * rate(z, t, r, cond, along) - target) ** 2] + [(second - target) ** 2] * head
    seen = np.broadcast_to(SEEN if masked and train else np.ones_like(SEEN), z.shape)
    squares = [(term * seen).sum((1, 2, 3)) for term in terms]  # S of each example
    errors = [square / seen.sum((1, 2, 3)) for square in squares]
    expected = {"loss": mean(sum(square / (square + OFFSET) ** POWER for square in squares)), "raw_loss": mean(errors[0]), "expert": 1.5}
    expected |= {"raw_loss_equal": mean(errors[0], t == r), "share_equal": mean(t == r)}
    for index in range(4):
        expected[f"raw_loss_t{index}"] = mean(errors[0], (t * 4).astype(int) == index)
        expected[f"share_h{index}"] = mean(((t - r) * 4).astype(int) == index)
    if head:
        expected["head_loss"] = mean(errors[1])
    if not train and hasattr(objective, "omega_max"):
        z, t, r, cond, _ = calls[-1]
        np.testing.assert_array_equal(t, r)
        assert {name: set(cond[name]) for name in ("omega", "t_lo", "t_hi")} == dict(omega={1.0}, t_lo={0.0}, t_hi={1.0})
        expected["velocity_loss"] = mean(((predictions(z, t, t, cond)[0] - (z - BATCH["x"]) / column(t)) ** 2).mean((1, 2, 3)))
    assert loss == metrics["loss"]
    assert metrics == pytest.approx(expected, rel=1e-6)
