"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in one or two dimensions: attention scores depend on offsets only."""

import jax
import jax.numpy as jnp
import numpy as np

from tinygen.nn.layers import coordinates
from tinygen.nn.matmul import wide

LONGEST = 100.0  # frequencies from 1 to nearly 1/100 radians per patch, for images tens of patches wide (Heo et al. 2024)
LONGEST_LINE = 10_000.0  # from 1 to nearly 1/10,000 radians per token, for texts of hundreds of tokens


def angles(height: int, width: int, head_size: int, grid: int = 0, *, scale: float = 1.0, offset: float = 0.0) -> np.ndarray:
    """float64 [height · width, head_size / 2]: the rotation of each pair of a head's features at each place of a grid, row by row.

    The first half depends on the row, the second on the column (axial; Heo et al. 2024, arXiv 2403.13298).
    head_size: a multiple of 4; grid: see `layers.coordinates`; scale, offset: of the coordinates, for a grid of blocks of places
    """
    quarter = head_size // 4
    frequencies = LONGEST ** -(np.arange(quarter) / quarter)
    return np.concatenate([(scale * place[:, None] + offset) * frequencies for place in coordinates(height, width, grid)], -1)


def line_angles(position: jax.Array, head_size: int) -> jax.Array:
    """[..., head_size / 2]: the rotation of each pair of a head's features for tokens at `position` [...]. head_size: even"""
    half = head_size // 2
    return position[..., None].astype(jnp.float32) * jnp.asarray(LONGEST_LINE ** -(np.arange(half) / half), jnp.float32)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """x [B, L, N, K] with each pair (i, i + K/2) of a head's features rotated by its token's angle i. angles: [L, K/2] or [B, L, K/2]"""
    turned = wide(angles)[..., None, :]  # the same for every head
    cosine, sine = jnp.cos(turned), jnp.sin(turned)
    first, second = jnp.split(wide(x), 2, -1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1).astype(x.dtype)
