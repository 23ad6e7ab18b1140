from pathlib import Path

import numpy as np
import pytest
import record_fid_goldens
from PIL import Image

from tinygen.evaluation.features import resize

ROOT = Path(__file__).parents[3]
TOLERANCE = {"adm": 0, "clean": 0, "pytorch-fid": 1e-6}


@pytest.mark.parametrize("preset", resize.PRESETS)
def test_images_of_all_sizes_become_what_the_original_makes_of_them(preset):
    with np.load(ROOT / "tests" / "golden" / "resize.npz") as golden:
        recorded = golden[preset]
    for index, image in enumerate(record_fid_goldens.golden_images()):
        resized = resize.PRESETS[preset](image)
        assert resized.dtype == np.float32
        assert resized.shape == (299, 299, 3)
        assert np.abs(resized[record_fid_goldens.places(index)] - recorded[index]).max() <= TOLERANCE[preset]


@pytest.mark.parametrize("preset", resize.PRESETS)
def test_an_image_of_299_pixels_keeps_them(preset):
    image = np.random.default_rng(0).integers(0, 256, (299, 299, 3), dtype=np.uint8)
    scaled = 2 * (image.astype(np.float64) / 255) - 1 if preset == "pytorch-fid" else (image.astype(np.float64) - 128) / 128
    np.testing.assert_allclose(resize.PRESETS[preset](image), scaled, atol=1e-6)


def test_a_ramp_is_met_where_each_grid_says():
    """Rows of 0, 100, 200: bilinear interpolation of a ramp is the ramp, at the grid's own positions."""
    image = np.repeat(np.array([0, 100, 200], np.uint8)[:, None, None], 3, 2).repeat(2, 1)
    corners = 100 * np.minimum(np.arange(299) * 3 / 299, 2)
    centres = 100 * np.clip((np.arange(299) + 0.5) * 3 / 299 - 0.5, 0, 2)
    np.testing.assert_allclose(resize.adm(image)[:, 5, 1], (corners - 128) / 128, atol=1e-6)
    np.testing.assert_allclose(resize.pytorch_fid(image)[:, 5, 1], 2 * centres / 255 - 1, atol=1e-6)


def test_only_the_clean_preset_averages_what_it_reduces():
    stripes = np.tile(np.array([0, 255], np.uint8), 299)[None, :, None].repeat(299, 0).repeat(3, 2)  # [299, 598, 3]
    assert np.abs(resize.clean(stripes)[:, 5:-5]).max() < 0.1  # grey
    assert np.abs(resize.adm(stripes)).min() > 0.9  # every second pixel


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (2, 3), (1200, 5)])
@pytest.mark.parametrize("preset", resize.PRESETS)
def test_an_image_of_any_size_stays_within_its_range(preset, size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    resized = resize.PRESETS[preset](image)
    assert resized.shape == (299, 299, 3)
    assert resized.min() >= -1
    assert resized.max() <= 1


def colours(mode, *pixels):
    image = Image.new(mode, (len(pixels), 1))
    for column, pixel in enumerate(pixels):
        image.putpixel((column, 0), pixel)
    return image


def palette():
    image = colours("P", 0, 1)
    image.putpalette([1, 2, 3, 200, 100, 50])
    image.info["transparency"] = 0
    return image


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (colours("L", 7, 200), [[7] * 3, [200] * 3]),
        (colours("1", 0, 255), [[0] * 3, [255] * 3]),
        (colours("LA", (9, 0), (8, 255)), [[9] * 3, [8] * 3]),
        (colours("RGBA", (1, 2, 3, 0), (4, 5, 6, 255)), [[1, 2, 3], [4, 5, 6]]),
        (palette(), [[1, 2, 3], [200, 100, 50]]),
        (colours("CMYK", (0, 255, 255, 0), (0, 0, 0, 255)), [[255, 0, 0], [0, 0, 0]]),
        (colours("I;16", 65535, 257 * 100 + 128), [[255] * 3, [100] * 3]),
        (colours("I", 65535, 257 * 100 + 129, -5, 70000), [[255] * 3, [101] * 3, [0] * 3, [255] * 3]),
        (colours("RGB", (1, 2, 3)), [[1, 2, 3]]),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else "",
)
def test_pictures_of_all_kinds_become_rgb_by_the_stated_rule(image, expected):
    found = resize.rgb(image)
    assert found.dtype == np.uint8
    assert found[0].tolist() == expected


def test_pixels_whose_range_is_unknown_are_refused():
    with pytest.raises(ValueError, match="float pixels"):
        resize.rgb(Image.new("F", (2, 2)))
