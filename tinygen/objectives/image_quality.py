"""How close a reconstructed image is to its original: PSNR and structural similarity."""

import jax
import jax.numpy as jnp
import numpy as np

SMALLEST = 1e-10  # lower bound of the mean squared error: PSNR is at most 106 dB
RADIUS, SIGMA = 5, 1.5  # pixels: the window of structural similarity is Gaussian, 11x11
RANGE = 2.0  # of pixels in [-1, 1]


def quality(decoded: jax.Array, x: jax.Array) -> dict[str, jax.Array]:
    """`psnr` [B] and, of images at least as large as its window, `ssim` [B]."""
    large = min(x.shape[1:3]) > 2 * RADIUS
    return {"psnr": psnr(decoded, x)} | ({"ssim": ssim(decoded, x)} if large else {})


def psnr(decoded: jax.Array, x: jax.Array) -> jax.Array:
    """Peak signal-to-noise ratio [B] in decibels, 10·log10(2² / mean squared error), with `decoded` clipped to [-1, 1]."""
    square = jnp.mean(jnp.square(jnp.clip(decoded, -1.0, 1.0) - x), tuple(range(1, x.ndim)))
    return 10.0 * jnp.log10(RANGE**2 / jnp.maximum(square, SMALLEST))


def ssim(decoded: jax.Array, x: jax.Array) -> jax.Array:
    """Structural similarity [B] (Wang et al. 2004), the mean over channels and windows inside the image, `decoded` clipped to [-1, 1].

    K1 = 0.01, K2 = 0.03, and population (co)variances. Sides are 11 or more.
    """
    a, b = jnp.clip(decoded, -1.0, 1.0), x
    mean_a, mean_b = smoothed(a), smoothed(b)
    variances = smoothed(a * a) + smoothed(b * b) - mean_a * mean_a - mean_b * mean_b
    covariance = smoothed(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2
    brightness = (2 * mean_a * mean_b + c1) / (mean_a * mean_a + mean_b * mean_b + c1)
    return jnp.mean(brightness * (2 * covariance + c2) / (variances + c2), tuple(range(1, x.ndim)))


def smoothed(x: jax.Array) -> jax.Array:
    """[B, H, W, C] -> [B, H - 10, W - 10, C], Gaussian means of the windows inside the image, one axis after the other."""
    taps = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
    taps = (taps / taps.sum()).astype(np.float32)
    for axis in (1, 2):
        size = x.shape[axis] - 2 * RADIUS
        x = sum((tap * jax.lax.slice_in_dim(x, i, i + size, axis=axis) for i, tap in enumerate(taps)), jnp.zeros(()))
    return x
