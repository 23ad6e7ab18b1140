"""Pictures in an .npz file: streamed from any start; whatever is no such file is refused in a line."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation.images import of_npz

NUMBERS = np.random.default_rng(0)


def noise(*shape):
    return NUMBERS.integers(0, 255, shape, np.uint8, endpoint=True)


def read(pictures, start=0):
    return [each() for each in pictures.reads(start)]


@pytest.fixture
def npz(tmp_path):
    def make(name="samples.npz", save=np.savez, **arrays):
        save(tmp_path / name, **arrays)
        return str(tmp_path / name)

    return make


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_of_pictures_is_streamed_from_any_start(npz, channels, save):
    array = noise(7, 5, 4, channels)
    pictures = of_npz(npz(save=save, arr_0=array), "--samples")
    expected = np.repeat(array, 3, -1) if channels == 1 else array[..., :3]
    for start in (0, 1, 6, 7):
        got = read(pictures, start)
        assert len(got) == 7 - start
        for picture, same in zip(got, expected[start:], strict=True):
            np.testing.assert_array_equal(picture, same)


def test_reading_an_npz_holds_one_picture_at_a_time(npz, monkeypatch):
    taken = []
    pictures = of_npz(npz(arr_0=noise(50, 8, 8, 3)), "--samples")
    read_member = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda self, n=-1: [taken.append(n), read_member(self, n)][1])
    next(iter(pictures.reads(0)))
    assert max(taken) < 50 * 8 * 8 * 3
    assert -1 not in taken


def test_pictures_are_known_by_the_usual_names_and_a_file_without_holds_none(npz):
    for name in ("arr_0", "images", "samples"):
        assert of_npz(npz(**{name: noise(2, 4, 4, 3)}), "--samples").num == 2
    assert of_npz(npz(mu=np.zeros(3), sigma=np.eye(3)), "--ref") is None


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 4, 4, 3), np.float32), noise(2, 4, 4), noise(2, 4, 4, 2), noise(0, 4, 4, 3), np.asfortranarray(noise(2, 4, 4, 3))],
    ids=["floats", "no channels", "two channels", "none", "column by column"],
)
def test_another_array_is_refused_with_what_it_is(npz, array):
    with pytest.raises(UserError, match=r"^--samples=.*arr_0 is .*where pictures are uint8 \[N, H, W, 1, 3 or 4\]"):
        of_npz(npz(arr_0=array), "--samples")


def test_no_file_no_archive_and_half_of_one_are_refused(npz, tmp_path):
    with pytest.raises(UserError, match=r"^--samples=nowhere\.npz is not there$"):
        of_npz("nowhere.npz", "--samples")
    (tmp_path / "text.npz").write_text("no archive")
    whole = (tmp_path / npz(arr_0=noise(4, 8, 8, 3))).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("text.npz", "half.npz"):
        with pytest.raises(UserError, match=r"^--samples=\S+ is not an \.npz file that can be read \(.*\)$"):
            of_npz(str(tmp_path / name), "--samples")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_bit_that_has_changed_is_the_users_to_mend(npz, save):
    path = Path(npz(save=save, arr_0=noise(40, 8, 8, 3)))
    whole, said = path.read_bytes(), set()
    for place in np.linspace(0, len(whole) - 1, 60).astype(int):  # some are never read, or mean nothing
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            pictures = of_npz(str(path), "--samples")
            read(pictures) if pictures else None
        except UserError as error:
            said.add(str(error))
    assert said
    assert all(str(path) in line for line in said)


def test_an_array_with_fewer_pictures_than_it_says_is_refused(tmp_path):
    content = io.BytesIO()
    np.save(content, noise(4, 8, 8, 3))
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("arr_0.npy", content.getvalue()[:-100])
    with pytest.raises(UserError, match=r"arr_0 declares uint8\[4, 8, 8, 3\], 768 bytes, and holds 668"):
        of_npz(str(tmp_path / "short.npz"), "--samples")


def test_an_object_and_a_pipe_are_refused(npz, tmp_path):
    with pytest.raises(UserError, match="an array of objects, where numbers are expected"):
        of_npz(npz(arr_0={}), "--samples")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"pipe is neither a folder nor a regular file$"):
        of_npz(str(tmp_path / "pipe"), "--samples")
