"""Order of convergence of each sampler with an exact velocity: a mixture of two Gaussians in one dimension.

    python scripts/compare/sampler_orders.py [--time_grid=logit_normal]

Prints the errors with 32 to 512 steps in float64, and the order: minus the slope of the logarithmic error over the
logarithmic number of steps.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from tinygen.rng import stream
from tinygen.samplers import time_grids
from tinygen.samplers.paths import Given, Path
from tinygen.samplers.table import SAMPLERS

STEPS = (32, 64, 128, 256, 512)
WHOLE, INNER = (1.0, 0.0), (0.95, 0.1)  # INNER: λ = ln((1 - t)/t), in which some samplers step, is finite there
ORDERS = dict(euler=(1, WHOLE), midpoint=(2, WHOLE), heun=(2, WHOLE), rk4=(4, WHOLE), dpmpp_2m=(2, INNER), edm_heun=(2, INNER))
SHAPE = time_grids.Shape(mean=0.0, std=1.0, shift=3.0)  # of non-uniform grids: training's default, a common shift
START = np.linspace(-2.5, 2.5, 11)


def velocity(z, t, xp=jnp):
    """E[ε - x | z_t = z] of the mixture: the velocities of the components, weighted by their responsibilities."""
    weight, centre, width = np.array([0.4, 0.6]), np.array([-1.0, 0.8]), np.array([0.3, 0.4])
    z, t = z[..., None], xp.asarray(t)[..., None]
    off, variance = z - (1 - t) * centre, (1 - t) ** 2 * width**2 + t**2
    density = weight * xp.exp(-(off**2) / (2 * variance)) / xp.sqrt(variance)
    return (density * (-centre + (t - (1 - t) * width**2) / variance * off)).sum(-1) / density.sum(-1)


@functools.cache
def truth(ends: tuple[float, float]) -> np.ndarray:
    """The solution at ends[1] that starts from START at ends[0], by SciPy."""
    return solve_ivp(lambda t, z: velocity(z, t, np), ends, START, method="DOP853", rtol=1e-13, atol=1e-13).y[:, -1]


def error(sampler: str, grid: np.ndarray) -> float:
    """The largest error over all starting points, with steps through the times `grid`. Needs float64."""
    given = Given(Path(decay=1.0), stream(0, "sample"), tolerance=1e-3, most=0)  # neither noise nor adaptive steps
    found, _ = SAMPLERS[sampler].integrate(lambda z, t, r: velocity(z, t), jnp.asarray(START), grid, given)
    return float(np.abs(np.asarray(found) - truth((grid[0], grid[-1]))).max())


def errors(sampler: str, ends: tuple[float, float], time_grid: str = "uniform") -> list[float]:
    """`error` for each of STEPS, with times evenly spaced between `ends` or from another of flow matching's grids."""
    grids = [np.linspace(*ends, steps + 1) if time_grid == "uniform" else time_grids.times(time_grid, steps, SHAPE) for steps in STEPS]
    return [error(sampler, grid) for grid in grids]


def order(errors: list[float]) -> float:
    return -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time_grid", choices=time_grids.GRIDS, default="uniform", help="times of the steps (default: %(default)s)")
    time_grid = parser.parse_args().time_grid
    with jax.enable_x64(True):
        for name, (_, ends) in ORDERS.items():
            start, end = ends if time_grid == "uniform" else WHOLE
            found = errors(name, ends, time_grid)
            print(f"{name:<8}  t {start:g} to {end:g}  {'  '.join(f'{each:.1e}' for each in found)}  order {order(found):.2f}")


if __name__ == "__main__":
    main()
