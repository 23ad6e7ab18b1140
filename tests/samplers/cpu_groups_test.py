"""Samples drawn in groups: the same as all together, and groups only where they help."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gaussian_flow import flow
from small_microdit import make

from tinygen import rng
from tinygen.distributed.mesh import make_mesh
from tinygen.samplers import cpu_groups

B, WIDTH = 7, 64
KERNEL = jnp.asarray(np.random.default_rng(0).normal(size=(4, WIDTH)), jnp.float32)
RESULT = 4 * WIDTH  # bytes of an example's widest product
KEYS = rng.example_keys(jax.random.key(3), 0, B)
LABEL = jnp.arange(B)


class Counted:
    """A function to sample with, which notes how many examples it is given."""

    def __init__(self):
        self.sizes = []

    def __call__(self, keys, cond, negative):
        assert negative is None
        self.sizes.append(len(keys))
        return rng.normal(keys, (4,)) @ KERNEL + cond["label"][:, None]


def whole():
    return Counted()(KEYS, {"label": LABEL}, None)


@pytest.mark.parametrize(("fit", "size"), [(1, 1), (2, 2), (3, 3), (4, 4), (6, 4), (7, 7), (100, 7)])
def test_a_group_holds_what_fits_and_all_groups_are_about_equal(monkeypatch, fit, size):
    """7 in groups of at most 3 are 3, 3 and 1 that is filled up; in groups of at most 6 they are 4 and 3."""
    monkeypatch.setattr(cpu_groups, "CACHE", fit * RESULT)
    sample = Counted()
    drawn = jax.jit(lambda keys, label: cpu_groups.in_groups(sample, keys, {"label": label}, None))(KEYS, LABEL)
    assert sample.sizes[0] == 1  # the example that is looked at
    assert set(sample.sizes[1:]) == {size}
    np.testing.assert_allclose(drawn, whole(), rtol=1e-5, atol=1e-5)


def test_no_examples_are_no_samples():
    assert cpu_groups.in_groups(Counted(), KEYS[:0], {"label": LABEL[:0]}, None).shape == (0, WIDTH)


def test_an_accelerator_and_several_devices_draw_all_together(monkeypatch):
    monkeypatch.setattr(cpu_groups, "CACHE", 1)
    with jax.set_mesh(make_mesh(dict(data=jax.device_count(), fsdp=1, tensor=1))):
        assert cpu_groups.examples_together(Counted(), KEYS, {"label": LABEL}, None) == B
    assert cpu_groups.examples_together(Counted(), KEYS, {"label": LABEL}, None) == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert cpu_groups.examples_together(Counted(), KEYS, {"label": LABEL}, None) == B


@pytest.mark.slow
def test_a_denoisers_samples_are_the_same_in_groups(monkeypatch):
    """Labels, guidance and a negative condition each go with their example."""
    graph, state = nnx.split(make(shape=(8, 8, 1), classes=B, patch=4, mlp_ratio=2.0, time_scale=1.0))
    state = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(1), leaf.shape), state)
    objective = flow(shape=(8, 8, 1), nfe=12, guidance=2.0, guidance_interval=(0.2, 0.9))

    def draw():
        together = []
        spy = cpu_groups.examples_together
        monkeypatch.setattr(cpu_groups, "examples_together", lambda *given: together.append(spy(*given)) or together[-1])
        sample = jax.jit(lambda state: objective.draw(nnx.merge(graph, state), KEYS, {"label": LABEL}, {"label": LABEL[::-1]})[0])
        return sample(state), together

    want, many = draw()
    monkeypatch.setattr(cpu_groups, "CACHE", 3 * 4 * 2 * 4 * 32)  # three examples, twice for guidance: 4 tokens of 32 hidden features
    got, few = draw()
    assert many[0] >= B > few[0] > 1
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert float(jnp.std(want)) > 0.1
