"""Flow matching as tests set it up, and data N(M, S²) whose velocity is known in closed form."""

import jax
import numpy as np

from tinygen.nn.layers import Output
from tinygen.objectives.flow import FlowMatching

SHAPE = (2, 2, 1)
KEY = jax.random.key
SETTINGS = dict(
    shape=SHAPE, t_mean=0.0, t_std=1.0, cond_drop=0.1, sampler="heun", nfe=50, guidance=1.0, guidance_interval=(0.0, 1.0),
    time_grid="uniform", shift=3.0, tolerance=1e-3,
)  # fmt: skip


def flow(**changes):
    return FlowMatching(**(SETTINGS | changes))


def denoiser(predict):
    """A model of the call shape that objectives know, from a function (x, t, cond) -> prediction."""
    return lambda x, t, r=None, cond=None, *, rngs=None: Output(predict(x, t, cond))


def column(t):
    return t.reshape(-1, 1, 1, 1)


M, S = 0.7, 0.5


def gaussian_velocity(x, t, cond=None):
    t = column(t)
    return -M + (t - (1 - t) * S**2) / ((1 - t) ** 2 * S**2 + t**2) * (x - (1 - t) * M)


def draws(num=200, seed=0):
    """z, t > r of the Gaussian's flow, float64."""
    draw = np.random.default_rng(seed)
    t, r = np.sort(draw.uniform(0.01, 0.99, (2, num)), 0)[::-1]
    x, noise = M + S * draw.normal(size=(num, *SHAPE)), draw.normal(size=(num, *SHAPE))
    return (1 - column(t)) * x + column(t) * noise, noise - x, t, r
