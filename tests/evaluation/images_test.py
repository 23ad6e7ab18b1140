"""Pictures as scores get them: what becomes of each kind of file, in which order, and what a broken one is called."""

import numpy as np
import pytest
from PIL import Image

from tinygen import build
from tinygen import config as config_lib
from tinygen.errors import UserError
from tinygen.evaluation import images as module
from tinygen.evaluation.images import of_folder, of_split

NUMBERS = np.random.default_rng(0)


def noise(*shape, dtype=np.uint8):
    return NUMBERS.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def read(pictures, start=0):
    return [each() for each in pictures.reads(start)]


@pytest.fixture
def folder(tmp_path):
    """folder(name=Image): a folder with those files."""

    def make(**images):
        place = tmp_path / "images"
        for name, image in images.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{name}.png")
        return place

    return make


def one(folder, image):
    return read(of_folder(str(folder(only=image)), "--samples"))[0]


def test_grey_is_repeated(folder):
    grey = noise(5, 4)
    np.testing.assert_array_equal(one(folder, Image.fromarray(grey)), np.repeat(grey[..., None], 3, -1))


def test_transparency_is_dropped_and_the_colours_behind_it_count(folder):
    rgba = noise(5, 4, 4)
    np.testing.assert_array_equal(one(folder, Image.fromarray(rgba)), rgba[..., :3])
    grey = noise(5, 4, 2)
    np.testing.assert_array_equal(one(folder, Image.fromarray(grey)), np.repeat(grey[..., :1], 3, -1))


def test_sixteen_bits_become_eight_by_rounding_not_by_clipping(folder):
    deep = noise(50, 40, dtype=np.uint16)
    got = one(folder, Image.fromarray(deep))
    np.testing.assert_array_equal(got, np.repeat(np.floor(deep / 257 + 0.5).astype(np.uint8)[..., None], 3, -1))


@pytest.mark.parametrize("transparent", [None, 1, bytes([0, 128, 255])])
def test_palettes_are_expanded_whatever_of_them_is_transparent(folder, transparent, recwarn):
    indices, palette = noise(6, 5) % 3, noise(3, 3)
    image = Image.fromarray(indices)
    image.putpalette(palette.tobytes())
    image.info |= {} if transparent is None else {"transparency": transparent}
    np.testing.assert_array_equal(one(folder, image), palette[indices])


def test_one_bit_is_black_and_white(folder):
    bits = noise(6, 5) > 127
    np.testing.assert_array_equal(one(folder, Image.fromarray(bits)), np.repeat(bits[..., None], 3, -1) * np.uint8(255))


def test_files_come_in_the_order_of_their_names_with_sizes_of_their_own_and_from_any_start(folder):
    sizes = {"10": (3, 4), "2": (5, 6), "a/1": (7, 8), "B": (1, 1)}
    pictures = of_folder(str(folder(**{name: Image.fromarray(noise(*size, 3)) for name, size in sizes.items()})), "--samples")
    assert [each.shape for each in read(pictures)] == [(3, 4, 3), (5, 6, 3), (1, 1, 3), (7, 8, 3)]
    assert [each.shape for each in read(pictures, 2)] == [(1, 1, 3), (7, 8, 3)]
    assert pictures.num == 4


def test_a_folder_is_known_by_its_content_and_the_first_of_it_is_another_set(folder):
    place = folder(a=Image.fromarray(noise(4, 4)), b=Image.fromarray(noise(4, 4)))
    pictures = of_folder(str(place), "--samples")
    assert of_folder(str(place), "--ref").fingerprint == pictures.fingerprint
    assert pictures.first(2) == pictures
    assert (pictures.first(1).num, pictures.first(1).fingerprint) == (1, f"{pictures.fingerprint}[:1]")
    (place / "b.png").rename(place / "0.png")  # another order
    assert of_folder(str(place), "--samples").fingerprint != pictures.fingerprint


def test_the_grid_of_tinygen_sample_is_no_sample(folder):
    place = folder(**{"00000": Image.fromarray(noise(4, 4)), "grid": Image.fromarray(noise(8, 8))})
    assert of_folder(str(place), "--samples").num == 2
    (place / "samples.json").write_text("{}")
    assert [each.shape for each in read(of_folder(str(place), "--samples"))] == [(4, 4, 3)]


def test_a_folder_without_images_is_refused_and_its_content_named(tmp_path):
    with pytest.raises(UserError, match=r"^--samples=\S+: no images there: PNG, JPEG"):
        of_folder(str(tmp_path), "--samples")
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(UserError, match=r"no images there \(but 1 \.md\)"):
        of_folder(str(tmp_path), "--samples")


def test_files_of_a_kind_that_this_pillow_cannot_read_are_counted(folder, caplog, monkeypatch):
    monkeypatch.setattr(module.pixels, "UNREADABLE", {"jxr": "this Pillow does not read JXR"})
    place = folder(a=Image.fromarray(noise(9, 9, 3)))
    (place / "b.jxr").touch()
    (place / "notes.md").touch()
    assert of_folder(str(place), "--samples").num == 1
    assert caplog.messages == [f"--samples={place}: passed over: 1 .jxr (this Pillow does not read JXR)"]


def damage(path):
    path.write_bytes(path.read_bytes()[:60])


@pytest.mark.parametrize("harm", [damage, lambda path: path.unlink(), lambda path: Image.new("F", (2, 2)).save(path, "TIFF")])
def test_a_file_that_goes_or_is_damaged_is_named_in_one_line(folder, harm):
    place = folder(a=Image.fromarray(noise(9, 9, 3)), b=Image.fromarray(noise(9, 9, 3)))
    reads = list(of_folder(str(place), "--samples").reads(0))
    harm(place / "b.png")
    assert reads[0]().shape == (9, 9, 3)
    with pytest.raises(UserError, match=r"b\.png cannot be read \(.+\): repair or remove it$") as refused:
        reads[1]()
    assert len(str(refused.value).splitlines()) == 1


@pytest.fixture
def faults(folder):
    """A folder of two good pictures among files that no decoder reads."""
    place = folder(a=Image.fromarray(noise(9, 9, 3)), d=Image.fromarray(noise(7, 7, 3)))
    (place / "b.png").write_bytes(b"")
    (place / "c.jpg").write_text("no picture")
    Image.new("F", (2, 2)).save(place / "e.tiff")
    (place / "f.png").symlink_to(place / "gone.png")
    return place


def test_files_that_cannot_be_read_are_left_out_counted_and_named_as_in_training(faults, caplog):
    pictures = of_folder(str(faults), "--samples")
    assert [each.shape for each in read(pictures)] == [(9, 9, 3), (7, 7, 3)]
    assert (pictures.num, pictures.left_out, pictures.first(1).left_out) == (2, 4, 4)
    (said,) = caplog.messages
    assert said.startswith(f"--samples={faults}: 4 of 6 files are left out ('b.png': an empty file; 'c.jpg': not an image")
    assert said.endswith("; ...)")
    caplog.clear()
    for name in ("b.png", "c.jpg", "e.tiff", "f.png"):
        (faults / name).unlink()
    whole = of_folder(str(faults), "--samples")
    assert (whole.fingerprint, whole.left_out, caplog.messages) == (pictures.fingerprint, 0, [])


def test_a_folder_of_which_nothing_can_be_read_is_refused(faults):
    (faults / "a.png").unlink()
    (faults / "d.png").unlink()
    with pytest.raises(
        UserError, match=r"^--ref=\S+: none of its 4 image files can be read \('b\.png': an empty file; 'c\.jpg'"
    ) as refused:
        of_folder(str(faults), "--ref")
    assert len(str(refused.value).splitlines()) == 1


def test_a_file_name_that_steers_a_terminal_is_shown_escaped(folder, caplog):
    place = folder(a=Image.fromarray(noise(9, 9, 3)))
    (place / "\x1b[31m.png").write_bytes(b"")
    of_folder(str(place), "--samples")
    assert "\\x1b[31m.png" in caplog.text
    assert "\x1b" not in caplog.text


def test_a_picture_that_has_become_another_since_its_folder_was_looked_at_is_refused(folder):
    """Its features would be kept under the name of what was there before."""
    place = folder(a=Image.fromarray(noise(9, 9, 3)))
    (read,) = of_folder(str(place), "--samples").reads(0)
    Image.fromarray(noise(30, 30, 3)).save(place / "a.png")
    with pytest.raises(UserError, match=r"a\.png cannot be read \(it has changed while being read\)"):
        read()


def test_a_split_gives_what_the_model_sees_from_any_start():
    source = build.data_source(config_lib.base(data=dict(name="digits8")))
    pictures = of_split(source, "validation", "held out")
    x = source.splits["validation"].take(np.arange(pictures.num))["x"]
    expected = np.repeat(source.codec.medium.decode(x), 3, -1)
    np.testing.assert_array_equal(read(pictures), expected)
    np.testing.assert_array_equal(read(pictures, module.BLOCK + 3), expected[module.BLOCK + 3 :])
    assert pictures.fingerprint != of_split(source, "train", "").fingerprint


def test_a_split_of_no_pictures_is_refused(curve):
    with pytest.raises(UserError, match="--ref=toy_sine: scores compare pictures, and these are curve data"):
        of_split(build.data_source(curve()), "train", "--ref=toy_sine")
