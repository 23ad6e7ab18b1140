import io

import numpy as np
import pytest
from PIL import Image

from tinygen.data.codec import encode_pixels
from tinygen.media import Array, Curve, curve, image
from tinygen.media.image import BORDER

IMAGES = np.random.default_rng(0).integers(0, 128, (7, 64, 60, 3)).astype(np.uint8)  # high enough not to be enlarged


def places(num, across, height, width):
    """Where image i of a grid stands: (rows, columns)."""
    for i in range(num):
        top, left = BORDER + (i // across) * (height + BORDER), BORDER + (i % across) * (width + BORDER)
        yield slice(top, top + height), slice(left, left + width)


@pytest.mark.parametrize(("columns", "across", "down"), [(None, 3, 3), (4, 4, 2), (7, 7, 1), (10, 7, 1), (1, 1, 7)])
def test_a_grid_shows_every_image_in_its_place_row_by_row(columns, across, down):
    sheet = image.grid(IMAGES, columns)
    assert sheet.shape == (down * (64 + BORDER) + BORDER, across * (60 + BORDER) + BORDER, 3)
    rest = sheet.copy()
    for shown, place in zip(IMAGES, places(7, across, 64, 60), strict=True):
        np.testing.assert_array_equal(sheet[place], shown)
        rest[place] = 128
    assert (rest == 128).all()  # borders and empty places are grey


@pytest.mark.parametrize(("height", "scale"), [(8, 8), (16, 4), (28, 3), (64, 1), (80, 1)])
def test_small_images_are_enlarged_by_whole_pixels_to_64_at_least(height, scale):
    images = np.random.default_rng(0).integers(0, 256, (4, height, 5, 1)).astype(np.uint8)
    sheet = image.grid(images)
    small = sheet[::scale, ::scale]
    np.testing.assert_array_equal(small.repeat(scale, 0).repeat(scale, 1), sheet)
    np.testing.assert_array_equal(small[next(places(1, 2, height, 5))], images[0])
    assert height * scale >= 64 > height * (scale - 1)


@pytest.mark.parametrize(
    ("classes", "columns"), [(0, None), (1, None), (2, 8), (3, 9), (6, 12), (8, 8), (10, 10), (24, 24), (25, None), (1000, None)]
)
def test_columns_hold_whole_cycles_of_the_classes(classes, columns):
    assert image.columns_for(classes) == columns


@pytest.mark.parametrize("channels", [1, 3])
def test_a_png_holds_the_same_pixels(channels):
    shown = IMAGES[0, ..., :channels]
    with Image.open(io.BytesIO(image.png(shown))) as stored:
        assert stored.format == "PNG"
        np.testing.assert_array_equal(np.asarray(stored).reshape(shown.shape), shown)


COLOURS = [(31, 119, 180), (255, 127, 14), (44, 160, 44)]  # Matplotlib's first three


def ink(sheet, index):
    """(x, y) of the pixels of a plot's curve of this number, y upwards."""
    curves = sheet[40:].astype(int)  # above stand their names
    rows, columns = (np.abs(curves - COLOURS[index]).sum(-1) < 60).nonzero()  # edges are blended
    return columns, len(curves) - rows


def test_a_plot_draws_each_curve_in_its_own_colour_y_upwards():
    x = np.linspace(3, 5, 100)
    sheet = curve.plot(np.stack([x, 10 * x - 7, 43 - 10 * x], -1), ["up", "down"])
    assert (sheet.shape, sheet.dtype) == ((400, 600, 3), np.uint8)
    for index, slope in enumerate((1, -1)):
        across, up = ink(sheet, index)
        assert slope * np.corrcoef(across, up)[0, 1] > 0.99
        assert np.ptp(across) > 400  # most of the picture's width


def test_curves_that_coincide_can_all_be_seen():
    x = np.linspace(0, 1, 100)
    sheet = curve.plot(np.stack([x, x, x, x], -1), ["truth", "raw", "averaged"])
    assert [len(ink(sheet, index)[0]) > 300 for index in range(3)] == [True] * 3


def test_few_points_are_marked_and_many_are_not():
    def middle(num):  # coloured pixels about the middle of a straight line of so many points
        x = np.linspace(0, 1, num)
        return (curve.plot(np.stack([x, x], -1), ["line"])[100:, 300:350] == COLOURS[0]).all(-1).sum()

    assert middle(3) > 1.1 * middle(2)
    assert middle(101) == pytest.approx(middle(2), rel=0.02)


def test_many_curves_are_thin_in_colours_of_their_own_and_all_are_named():
    x = np.arange(5.0)
    sheet = curve.plot(np.stack([x, *(x + 3 * index for index in range(12))], -1), [f"guidance {index}" for index in range(12)])
    assert (sheet.shape[1:], sheet.shape[0] > 400) == ((600, 3), True)  # the legend has four rows
    column = sheet[sheet.shape[0] // 3 :, 330]
    coloured = column[column.max(-1).astype(int) - column.min(-1) > 60]
    assert 12 <= len(coloured) <= 12 * 8
    assert len(np.unique(coloured, axis=0)) >= 12


def test_a_logarithmic_axis_puts_equal_ratios_at_equal_distances():
    x = np.array([1.0, 10.0, 100.0])
    straight = curve.plot(np.stack([np.log10(x), x * 0 + [0, 1, 2]], -1), ["line"])
    for log_x, alike in ((True, True), (False, False)):
        sheet = curve.plot(np.stack([x, x * 0 + [0, 1, 2]], -1), ["line"], log_x=log_x)
        same = (sheet[60:360, 60:590] == COLOURS[0]).all(-1) == (straight[60:360, 60:590] == COLOURS[0]).all(-1)
        assert (same.mean() > 0.999) == alike


def test_a_plot_names_its_curves():
    points = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert (curve.plot(points, ["one name"]) != curve.plot(points, ["another"])).any()
    with pytest.raises(ValueError, match="longer"):
        curve.plot(points, [])


@pytest.mark.parametrize("points", [np.zeros((5, 2)), np.array([[0.0, 1.0], [1.0, 1.0]])])
def test_a_flat_curve_can_be_plotted(points):
    assert curve.plot(points, ["flat"]).shape == (400, 600, 3)


def test_images_are_shown_as_a_grid_of_whole_label_cycles():
    items = image.Image().decode(encode_pixels(IMAGES))
    np.testing.assert_array_equal(image.Image().overview(items, image.columns_for(2)), image.grid(IMAGES, 8))


def test_a_curve_is_one_item_that_is_plotted():
    points, medium = np.array([[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]]), Curve(curves=("line",))
    np.testing.assert_array_equal(medium.overview(medium.decode(medium.first(points, 1))), curve.plot(points, ["line"]))


def test_arrays_cannot_be_shown():
    assert not Array("numbers").sheet_suffix
    with pytest.raises(NotImplementedError):
        Array("numbers").overview(np.zeros((3, 4)))
