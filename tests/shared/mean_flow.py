"""MeanFlow and improved MeanFlow as tests set them up, and the average velocity of data N(M, S²), which is known in closed form."""

from gaussian_flow import SHAPE, M, S, column

from tinygen.nn.layers import Output
from tinygen.objectives.meanflow import ImprovedMeanFlow, MeanFlow

COMMON = dict(
    shape=SHAPE, t_mean=-0.4, t_std=1.0, equal=0.5, cond_drop=0.1, power=0.0, offset=0.01, sampler="average", nfe=1, time_grid="uniform",
    shift=3.0,
)  # fmt: skip


def meanflow(**changes):
    return MeanFlow(**(COMMON | dict(omega=1.0, kappa=0.0, omega_interval=(0.0, 1.0)) | changes))


def improved(**changes):
    return ImprovedMeanFlow(**(COMMON | dict(velocity="boundary", omega_max=8.0, guidance=1.0, guidance_interval=(0.0, 1.0)) | changes))


def deviation(t):
    """Of z_t."""
    return ((1 - t) ** 2 * S**2 + t**2) ** 0.5


def gaussian_average(z, t, r):
    """(z_t - z_r) / (t - r) of the flow z_r = (1 - r)·M + (z_t - (1 - t)·M)·σ_r / σ_t, with the division by t - r carried out."""
    t, r = column(t), column(r)
    here, there = deviation(t), deviation(r)
    return -M + (z - (1 - t) * M) * ((t + r) - S**2 * (2 - t - r)) / (here * (here + there))


def averaging(predict):
    """A model of the call shape that objectives know, from a function (z, t, r, cond) -> prediction."""
    return lambda x, t, r=None, cond=None, *, rngs=None: Output(predict(x, t, r, cond))


EXACT = averaging(lambda z, t, r, cond: gaussian_average(z, t, r))
