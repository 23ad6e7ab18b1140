import io

import numpy as np
import pytest
from PIL import Image

from tinygen.data.images import pixels
from tinygen.errors import UserError

RED, GREEN, BLUE, GREY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128)


def fitted(image, size=2, fit="crop", channels=3, background="white"):
    """size: of a square's side, or (height, width)"""
    frame = size if isinstance(size, tuple) else (size, size)
    return pixels.fitted(image, size=frame, fit=fit, channels=channels, background=background)


def needs(kind):
    return pytest.mark.skipif(kind not in pixels.FORMATS, reason=f"this Pillow does not read {kind}")


def stored(image, kind="PNG", **options):
    """The image as it comes back from a file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return Image.open(stream, formats=pixels.FORMATS)


def picture(rows):
    return Image.fromarray(np.array(rows, np.uint8))


def blended(colour, background, alpha):
    return np.round(np.array(colour) * alpha / 255 + np.array(background) * (1 - alpha / 255)).astype(int).tolist()


# The corners of a 32x16 picture as it should be seen, and the places of its four corners in a file, by EXIF orientation
CORNERS = [[RED, GREEN], [BLUE, GREY]]
TURNED = {
    1: [[RED, GREEN], [BLUE, GREY]],
    2: [[GREEN, RED], [GREY, BLUE]],
    3: [[GREY, BLUE], [GREEN, RED]],
    4: [[BLUE, GREY], [RED, GREEN]],
    5: [[RED, BLUE], [GREEN, GREY]],
    6: [[GREEN, GREY], [RED, BLUE]],
    7: [[GREY, GREEN], [BLUE, RED]],
    8: [[BLUE, RED], [GREY, GREEN]],
}


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", pytest.param("AVIF", marks=needs("AVIF"))])
@pytest.mark.parametrize("orientation", TURNED)
def test_a_picture_is_turned_the_right_way_up_for_each_exif_orientation(orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    size = (16, 32) if orientation >= 5 else (32, 16)
    exact = dict(quality=100, subsampling="4:4:4")
    lossless = {"WEBP": dict(lossless=True), "JPEG": exact, "AVIF": exact}.get(kind, {})
    image = stored(picture(TURNED[orientation]).resize(size, Image.Resampling.NEAREST), kind, exif=exif, **lossless)
    assert pixels.upright(image).size == (32, 16)
    corners = np.array(pixels.upright(image))[[[0], [-1]], [[0, -1]]].astype(int)
    np.testing.assert_allclose(corners, CORNERS, atol=3)  # JPEG's and AVIF's rounding


def test_damaged_exif_data_count_as_none():
    for kind in ("PNG", "JPEG"):
        assert fitted(stored(Image.new("RGB", (4, 4), RED), kind, exif=b"Exif\0\0garbage")).shape == (2, 2, 3)


def test_sixteen_bit_grey_is_scaled_and_not_clipped():
    levels = np.array([[0, 128, 129, 257], [32768, 65535, 65406, 65407]], np.uint16)
    expected = np.round(levels / 257).astype(int)
    assert expected.tolist() == [[0, 0, 1, 1], [128, 255, 254, 255]]
    everything = [stored(Image.fromarray(levels), kind) for kind in ("PNG", "TIFF", "PPM")]
    everything += [Image.fromarray(levels.astype(np.int32)), Image.frombytes("I;16B", (4, 2), levels.astype(">u2").tobytes())]
    for image in everything:
        grey = fitted(image.crop((0, 0, 2, 2)), channels=1)[..., 0]
        assert grey.tolist() == expected[:, :2].tolist(), image.mode
        assert fitted(image.crop((2, 0, 4, 2))).tolist() == np.repeat(expected[:, 2:, None], 3, -1).tolist()


def test_whole_numbers_beyond_sixteen_bits_are_clipped():
    image = Image.fromarray(np.array([[-5, 70_000], [257, 514]], np.int32))
    assert fitted(image, channels=1)[..., 0].tolist() == [[0, 255], [1, 2]]


def test_sixteen_bit_grey_has_its_transparent_value_replaced():
    image = stored(Image.fromarray(np.array([[1000, 2570], [65535, 0]], np.uint16)), transparency=1000)
    assert image.info["transparency"] == 1000
    assert fitted(image, channels=3, background="red").tolist() == [[list(RED), [10] * 3], [[255] * 3, [0] * 3]]


def test_float_pixels_are_refused():
    with pytest.raises(ValueError, match="float pixels, whose range is unknown"):
        fitted(stored(Image.new("F", (4, 4), 0.5), "TIFF"))


@pytest.mark.parametrize("alpha", [0, 1, 100, 254, 255])
def test_transparency_shows_the_background(alpha):
    colour, background = (200, 100, 10), (0, 128, 255)
    for image in (Image.new("RGBA", (2, 2), (*colour, alpha)), stored(Image.new("RGBA", (4, 4), (*colour, alpha)), "WEBP", lossless=True)):
        expected = blended(colour, background, alpha) if alpha or image.mode != "RGBA" else list(background)
        np.testing.assert_allclose(fitted(image, background="#0080ff")[0, 0], expected, atol=1)  # PIL's blend is rounded in integers
    grey = Image.new("LA", (2, 2), (40, alpha))
    np.testing.assert_allclose(fitted(stored(grey), background="#0080ff")[0, 0], blended([40] * 3, background, alpha), atol=1)


def test_transparent_entries_of_a_palette_show_the_background():
    image = Image.new("P", (2, 2))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2, 1])
    assert fitted(stored(image)).tolist() == [[list(RED), list(GREEN)], [list(BLUE), list(GREEN)]]
    shown = [[list(RED), [9, 8, 7]], [list(BLUE), [9, 8, 7]]]
    assert fitted(stored(image, transparency=1), background="#090807").tolist() == shown
    assert fitted(stored(image, "GIF", transparency=1), background="#090807").tolist() == shown
    half = fitted(stored(image, transparency=bytes([255, 51, 255])), background="black")
    assert half[0, 1].tolist() == blended(GREEN, (0, 0, 0), 51)
    with_alpha = Image.new("PA", (2, 2), (2, 0))
    assert fitted(with_alpha, background="red")[0, 0].tolist() == list(RED)


def test_a_transparent_colour_shows_the_background():
    image = stored(picture([[RED, GREEN], [BLUE, RED]]), transparency=RED)
    assert fitted(image, background="black").tolist() == [[[0, 0, 0], list(GREEN)], [list(BLUE), [0, 0, 0]]]


def test_what_transparent_pixels_hide_does_not_bleed_into_their_neighbours():
    image = Image.new("RGBA", (64, 64), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (32, 0, 64, 64))
    assert fitted(image, size=8, background="black")[..., 0].max() == 0


def test_colour_spaces_become_rgb():
    assert fitted(Image.new("1", (2, 2), 1)).tolist() == np.full((2, 2, 3), 255).tolist()
    assert fitted(stored(Image.new("CMYK", (2, 2), (255, 0, 0, 0)), "TIFF"))[0, 0].tolist() == [0, 255, 255]
    assert fitted(stored(Image.new("CMYK", (2, 2), (0, 0, 0, 255)), "JPEG"))[0, 0].tolist() == [0, 0, 0]
    y, cb, cr = 120, 90, 170
    expected = [y + 1.402 * (cr - 128), y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128), y + 1.772 * (cb - 128)]
    np.testing.assert_allclose(fitted(Image.new("YCbCr", (2, 2), (y, cb, cr)))[0, 0], expected, atol=1)  # PIL's integer tables
    # L* = 100 x 137 / 255 without colour is the linear light ((L* + 16) / 116)^3, here 0.217, in sRGB's curve 0.503
    np.testing.assert_allclose(fitted(stored(Image.new("LAB", (2, 2), (137, 128, 128)), "TIFF"))[0, 0], [128] * 3, atol=1)
    np.testing.assert_allclose(fitted(Image.new("HSV", (2, 2), (85, 255, 200)))[0, 0], [0, 200, 0], atol=2)


def test_grey_is_the_luma_of_what_is_seen():
    image = picture([[RED, GREEN], [BLUE, (10, 20, 30)]])
    expected = np.round(np.array(image) @ [0.299, 0.587, 0.114])
    assert fitted(image, channels=1)[..., 0].tolist() == expected.tolist()
    assert fitted(Image.new("RGBA", (2, 2), (0, 0, 0, 0)), channels=1, background="red")[0, 0].tolist() == [76]
    assert fitted(Image.new("L", (4, 2), 9), channels=1, fit="pad", size=4, background="#00f")[:, 0, 0].tolist() == [29, 9, 9, 29]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG", pytest.param("AVIF", marks=needs("AVIF"))])
def test_of_several_frames_the_first_is_taken(kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    image = stored(frames[0], kind, save_all=True, append_images=frames[1:], **({"lossless": True} if kind == "WEBP" else {}))
    assert image.n_frames == 2
    np.testing.assert_allclose(fitted(image)[0, 0].astype(int), RED, atol=3 if kind == "AVIF" else 0)  # the others are lossless here


@needs("JPEG2000")
def test_jpeg_2000_is_read_in_colour_and_in_sixteen_bit_grey():
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    np.testing.assert_array_equal(fitted(stored(Image.fromarray(noise), "JPEG2000"), 8), noise)
    grey = stored(Image.new("I;16", (4, 4), 32768), "JPEG2000")
    assert fitted(grey, channels=1)[0, 0, 0] == 128


def test_a_picture_of_the_right_size_keeps_its_pixels_and_a_longer_one_those_of_its_middle():
    noise = np.random.default_rng(0).integers(0, 256, (8, 13, 3), np.uint8)
    np.testing.assert_array_equal(fitted(Image.fromarray(noise[:, :8]), 8), noise[:, :8])
    np.testing.assert_array_equal(fitted(Image.fromarray(noise), 8), noise[:, 2:10])
    np.testing.assert_array_equal(fitted(Image.fromarray(noise.transpose(1, 0, 2)), 8), noise.transpose(1, 0, 2)[2:10])


def test_padding_keeps_the_whole_picture_in_the_middle_of_the_background():
    tall = fitted(Image.new("RGB", (20, 40), BLUE), 8, "pad", background="red")
    expected = np.full((8, 8, 3), RED)
    expected[:, 2:6] = BLUE
    assert tall.tolist() == expected.tolist()
    wide = fitted(Image.new("RGB", (2000, 3), BLUE), 8, "pad", background="red")
    assert (wide == BLUE).all(-1).sum(1).tolist() == [0, 0, 0, 8, 0, 0, 0, 0]


def test_a_frame_that_is_not_square_is_height_by_width():
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 3), np.uint8)
    for fit in pixels.FITS:
        np.testing.assert_array_equal(fitted(Image.fromarray(noise), (9, 13), fit), noise)
        assert fitted(Image.fromarray(noise), (4, 20), fit, channels=1).shape == (4, 20, 1)
    np.testing.assert_array_equal(fitted(Image.fromarray(noise), (9, 6)), noise[:, 3:9])  # 3.5 pixels on either side, in whole ones
    np.testing.assert_array_equal(fitted(Image.fromarray(noise), (5, 13)), noise[2:7])


def test_each_fit_brings_a_picture_into_a_frame_of_other_proportions_in_its_own_way():
    halves = picture([[RED] * 8, [BLUE] * 8]).resize((80, 40), Image.Resampling.NEAREST)  # twice as wide as high, red above blue
    cropped, padded, squeezed = (fitted(halves, (16, 8), fit, background="lime") for fit in ("crop", "pad", "squeeze"))
    for whole in (cropped, squeezed):
        np.testing.assert_allclose(whole[:6].astype(int), np.full((6, 8, 3), RED), atol=8)  # what Lanczos overshoots near the edge
        np.testing.assert_allclose(whole[10:].astype(int), np.full((6, 8, 3), BLUE), atol=8)
    assert padded[[0, 5, 10, 15]].tolist() == np.full((4, 8, 3), GREEN).tolist()
    np.testing.assert_allclose(padded[[6, 9]].astype(int), [[RED] * 8, [BLUE] * 8], atol=8)
    gradient = Image.linear_gradient("L").rotate(90).resize((80, 40))  # grows from left to right
    spread = {fit: np.ptp(fitted(gradient, (16, 8), fit, channels=1)) for fit in ("crop", "squeeze")}
    assert spread["crop"] < 80 < 200 < spread["squeeze"]  # a quarter of the width, and all of it


def test_a_jpeg_that_lies_on_its_side_keeps_the_pixels_that_an_upright_frame_needs():
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = Image.linear_gradient("L").resize((100, 800)).convert("RGB")
    for fit in pixels.FITS:
        lying = stored(upright.transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)
        assert lying.size == (800, 100)
        np.testing.assert_allclose(fitted(lying, (200, 25), fit).astype(int), fitted(upright, (200, 25), fit).astype(int), atol=6)


def test_reducing_averages_and_does_not_alias():
    checks = Image.fromarray((np.indices((512, 512)).sum(0) % 2 * 255).astype(np.uint8))
    small = fitted(checks, 16, channels=1)
    assert small.min() >= 126
    assert small.max() <= 129


def test_small_pictures_are_enlarged():
    assert fitted(Image.new("RGB", (2, 3), GREEN), 16).tolist() == np.full((16, 16, 3), GREEN).tolist()


@pytest.mark.parametrize(
    ("fit", "size", "decoded"),
    [
        ("crop", 18, (50, 38)),
        ("crop", 20, (100, 75)),
        ("pad", 24, (50, 38)),
        ("pad", 26, (100, 75)),
        ("crop", 75, (200, 150)),
        ("crop", 76, (400, 300)),
    ],
)
def test_a_jpeg_is_decoded_small_but_at_twice_the_size_at_least(fit, size, decoded, monkeypatch):
    """Of 400x300: by 8, 4, 2 or 1, what leaves 2 x size of the shorter (crop) or the longer side (pad)."""
    seen = []
    monkeypatch.setattr(pixels, "upright", lambda image: seen.append(image.size) or image)
    image = Image.linear_gradient("L").resize((400, 300)).convert("RGB")
    small = fitted(stored(image, "JPEG", quality=95), size, fit)
    assert seen == [decoded]
    np.testing.assert_allclose(small.astype(int), fitted(image, size, fit).astype(int), atol=6)  # what JPEG and two ways to reduce leave


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(size=0), r"config\.data\.size=0 must be at least 1"),
        (dict(size=(37, -1)), r"config\.data\.size=37,-1 must be at least 1 \(pixels: a side, or height,width\)"),
        (dict(fit="corp"), "did you mean 'crop'"),
        (dict(channels=4), r"config\.data\.channels=4 must be 1 \(grey\) or 3"),
        (dict(background="whitish"), r"config\.data\.background='whitish' is not a colour"),
        (dict(background=""), "is not a colour"),
    ],
)
def test_options_that_mean_nothing_are_refused(changes, said):
    with pytest.raises(UserError, match=said):
        fitted(Image.new("RGB", (4, 4)), **changes)
