"""PSNR by its definition and structural similarity against scikit-image's."""

import numpy as np
import pytest
from skimage.metrics import structural_similarity

from tinygen.objectives.image_quality import psnr, quality, ssim

DRAW = np.random.default_rng(0)


def test_psnr_is_twenty_decibels_for_errors_of_a_tenth_of_the_range_and_each_image_has_its_own():
    shifted = np.stack([np.full((4, 4, 1), 0.2), np.full((4, 4, 1), 0.02)]).astype(np.float32)  # the range is 2
    np.testing.assert_allclose(psnr(shifted, np.zeros_like(shifted)), [20, 40], rtol=1e-5)
    np.testing.assert_allclose(psnr(np.full((1, 4), 9.0), np.ones((1, 4))), 106, atol=0.1)  # what is shown is cut off at 1


@pytest.mark.parametrize("shape", [(11, 11, 1), (16, 23, 3), (64, 64, 3)])
@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_structural_similarity_is_that_of_scikit_image(shape, noise):
    rows, columns = np.mgrid[: shape[0], : shape[1]] / 7.0
    x = np.stack([np.sin(rows + channel) * np.cos(columns) for channel in range(shape[2])], -1)[None].repeat(3, 0)
    x = (x * np.array([1.0, 0.5, 0.0])[:, None, None, None]).astype(np.float32)  # the last one is flat
    decoded = np.clip(x + noise * DRAW.normal(size=x.shape), -1, 1).astype(np.float32)
    want = [
        structural_similarity(a, b, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, channel_axis=-1, data_range=2)
        for a, b in zip(decoded.astype(np.float64), x.astype(np.float64), strict=True)
    ]
    np.testing.assert_allclose(ssim(decoded, x), want, rtol=0, atol=2e-5)  # variances are differences of squares in float32


def test_what_is_shown_is_cut_off_and_images_smaller_than_the_window_have_no_similarity():
    x = np.ones((2, 12, 12, 1), np.float32)
    np.testing.assert_allclose(ssim(3 * x, x), 1, rtol=1e-6)
    assert quality(x, x).keys() == {"psnr", "ssim"}
    assert quality(x[:, :10], x[:, :10]).keys() == {"psnr"}
