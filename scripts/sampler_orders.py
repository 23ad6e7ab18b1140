"""How fast each sampler's error falls with its steps, where the velocity is exact: data is a mixture of two Gaussians, in one dimension.

`python scripts/sampler_orders.py` prints the errors of 32 to 512 steps in float64, and the order: how they fall in logarithms.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from tinygen.objectives.paths import Given, Path
from tinygen.objectives.samplers import SAMPLERS
from tinygen.rng import stream

STEPS = (32, 64, 128, 256, 512)
WHOLE, INNER = (1.0, 0.0), (0.95, 0.1)  # inside, λ = ln((1 - t)/t) is finite, in which some samplers step
ORDERS = dict(euler=(1, WHOLE), midpoint=(2, WHOLE), heun=(2, WHOLE), rk4=(4, WHOLE), dpmpp_2m=(2, INNER), edm_heun=(2, INNER))
START = np.linspace(-2.5, 2.5, 11)


def velocity(z, t, xp=jnp):
    """E[ε - x | z_t = z] of the mixture: the components' own velocities, weighted with their responsibilities."""
    weight, centre, width = np.array([0.4, 0.6]), np.array([-1.0, 0.8]), np.array([0.3, 0.4])
    z, t = z[..., None], xp.asarray(t)[..., None]
    off, variance = z - (1 - t) * centre, (1 - t) ** 2 * width**2 + t**2
    density = weight * xp.exp(-(off**2) / (2 * variance)) / xp.sqrt(variance)
    return (density * (-centre + (t - (1 - t) * width**2) / variance * off)).sum(-1) / density.sum(-1)


@functools.cache
def truth(ends: tuple[float, float]) -> np.ndarray:
    """Where START at ends[0] is at ends[1], by SciPy."""
    return solve_ivp(lambda t, z: velocity(z, t, np), ends, START, method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1]


def error(sampler: str, steps: int, ends: tuple[float, float]) -> float:
    """The largest over all starting points. Wants float64."""
    given = Given(Path(decay=1.0), stream(0, "sample"), tolerance=1e-3, most=0)  # neither noise nor adaptive steps
    found, _ = SAMPLERS[sampler].integrate(lambda z, t, r: velocity(z, t), jnp.asarray(START), np.linspace(*ends, steps + 1), given)
    return float(np.abs(np.asarray(found) - truth(ends)).max())


def order(errors: list[float]) -> float:
    return -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with jax.enable_x64(True):
        for name, (_, ends) in ORDERS.items():
            errors = [error(name, steps, ends) for steps in STEPS]
            print(f"{name:<8}  t {ends[0]:g} to {ends[1]:g}  {'  '.join(f'{each:.1e}' for each in errors)}  order {order(errors):.2f}")


if __name__ == "__main__":
    main()
