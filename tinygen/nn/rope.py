"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), along a line or in a plane: attention's scores depend on offsets alone."""

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.nn.layers import coordinates
from tinygen.nn.matmul import wide

LONGEST = 100.0  # radians a patch fall from 1 to nearly 1/100: for the tens of patches that an image has a side (Heo et al. 2024)
LONGEST_LINE = 10_000.0  # and radians a token to nearly 1/10,000: for the hundreds that a text has


def angles(height: int, width: int, head_size: int, grid: int = 0) -> np.ndarray:
    """float64 [height · width, head_size / 2], by which each place of a grid turns the pairs of a head's features: row by row, the first
    half of them by the row, the others by the column (axial; Heo et al. 2024, arXiv 2403.13298).

    head_size: a multiple of 4
    grid: as `layers.coordinates` takes it
    """
    quarter = head_size // 4
    frequencies = LONGEST ** -(np.arange(quarter) / quarter)
    return np.concatenate([place[:, None] * frequencies for place in coordinates(height, width, grid)], -1)


def line(position: jax.Array, head_size: int) -> jax.Array:
    """[..., head_size / 2], by which tokens at `position` [...] turn the pairs of a head's features. head_size: even"""
    half = head_size // 2
    return position[..., None].astype(jnp.float32) * jnp.asarray(LONGEST_LINE ** -(np.arange(half) / half), jnp.float32)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """x [B, L, N, K], each pair (i, i + K/2) of a head's features turned by its token's angle i: [L, K/2], or [B, L, K/2] where each
    example has its own.
    """
    turned = wide(angles)[..., None, :]  # for every head the same
    cosine, sine = jnp.cos(turned), jnp.sin(turned)
    first, second = jnp.split(wide(x), 2, -1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(x.dtype)
