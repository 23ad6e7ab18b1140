"""Arrays from files that anyone may have made: refused by what their headers declare, before memory is taken."""

import contextlib
import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation.images import of_npz
from tinygen.evaluation.references import find
from tinygen.pretrained import weights
from tinygen.system import npy


def packed(shape, dtype="<f8", size=0):
    """A .npy file of zeros, of `size` bytes after the header, whatever that declares."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(size)


def archive(path, compression=zipfile.ZIP_DEFLATED, **members):
    """An .npz file of raw members."""
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return str(path)


def claiming(path, name, size, **members):
    """An .npz file whose directory says of one member that it has so many bytes."""
    archive(path, **members)
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02", 0, content.rindex(f"{name}.npy".encode()))
    content[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(content)
    return str(path)


def zeros(path, name, shape, dtype, **others):
    """An .npz file that is as the honest one of an array of zeros up to its last page, and as small."""
    header = packed(shape, dtype, 2**16)
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    return claiming(path, name, size + len(packed(shape, dtype)), **{name: header}, **others)


def read(path, name="x"):
    with npy.Npz(path) as file:
        return file.read(name)


@contextlib.contextmanager
def frugal():
    """What the block does takes 16 MiB at most."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.float32(3), np.zeros((0, 4), np.int8),
        np.array("words"), np.arange(4, dtype=">u2"), np.array([True, False]),
    ],
    ids=repr,
)  # fmt: skip
def test_an_array_is_the_one_that_numpy_wrote(tmp_path, save, array):
    save(tmp_path / "x.npz", x=array, y=1)
    found = read(str(tmp_path / "x.npz"))
    np.testing.assert_array_equal(found, array, strict=True)
    assert found.flags.f_contiguous == np.asarray(array).flags.f_contiguous
    with npy.Npz(str(tmp_path / "x.npz")) as file:
        assert file.names == ["x", "y"]
        assert ("x" in file, "z" in file) == (True, False)


def test_an_array_on_the_disk_is_mapped(tmp_path):
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        np.save(tmp_path / "x.npy", array)
        found = npy.mapped(tmp_path / "x.npy")
        np.testing.assert_array_equal(found, array)
        assert isinstance(found, np.memmap)


HOSTILE = {
    "objects": (packed((3,), "|O", 24), "an array of objects"),
    "structures": (packed((3,), [("a", "<f8")], 24), "where numbers are expected"),
    "a negative length": (packed((-3, -8), "<f8", 192), r"an array of shape \[-3, -8\]"),
    "more than there is": (packed((10**6, 10**6)), "declares float64.1000000, 1000000., 8,000,000,000,000 bytes, and holds 0"),
    "less than there is": (packed((2,), "<f8", 24), "16 bytes, and holds 24"),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 100, "a .npy header of 4,294,967,295 bytes"),
    "version 3": (b"\x93NUMPY\x03\x00" + struct.pack("<I", 10) + b" " * 100, "version 3.0, which is not supported"),
    "nothing": (b"", "magic"),
    "text": (b"no array at all", "magic"),
    "half a header": (packed((2,))[:40], "header that cannot be parsed"),
}


@pytest.mark.parametrize("content", HOSTILE)
def test_what_a_header_should_not_declare_is_refused_before_memory_is_taken(tmp_path, content):
    data, said = HOSTILE[content]
    path = archive(tmp_path / "x.npz", x=data)
    (tmp_path / "x.npy").write_bytes(data)
    with frugal(), pytest.raises(ValueError, match=said):
        read(path)
    if "less" not in content:  # a .npy file may have something behind its array
        with frugal(), pytest.raises(ValueError, match=said):
            npy.mapped(tmp_path / "x.npy")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_unpacks_without_bound_is_not_read(tmp_path, compression):
    path = archive(tmp_path / "x.npz", compression, x=packed((2**26,), "u1", 2**26))
    with frugal(), pytest.raises(ValueError, match="a method other than deflate"):
        read(path)
    with frugal(), pytest.raises(UserError, match="a method other than deflate"):
        weights.read(path)


def test_a_member_that_lies_about_its_size_is_read_no_further(tmp_path):
    whole = packed((2**26,), "u1", 2**26)
    path = claiming(tmp_path / "x.npz", "x", 2**20, x=whole)
    with frugal(), pytest.raises(ValueError, match=r"declares uint8\[67108864\], 67,108,864 bytes, and holds"):
        read(path)
    stated = packed((2**20,), "u1")
    path = claiming(tmp_path / "x.npz", "x", len(stated) + 2**20, x=stated + bytes(2**26))
    with frugal(), pytest.raises(zipfile.BadZipFile, match="CRC"):  # of what lies behind that it says nothing
        read(path)
    with frugal(), pytest.raises(ValueError, match="x holds 65,536 bytes where 4,194,304 are declared"):
        read(zeros(tmp_path / "x.npz", "x", (2**22,), "u1"))


def test_an_array_with_a_wrong_checksum_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.full(100, 3.0))
    content = (tmp_path / "x.npz").read_bytes().replace(np.float64(3).tobytes(), np.float64(4).tobytes(), 1)
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        read(str(tmp_path / "x.npz"))


def test_a_string_is_short(tmp_path):
    np.savez(tmp_path / "x.npz", words=np.array("some"), number=3, many=np.array(["a", "b"]))
    with npy.Npz(str(tmp_path / "x.npz")) as file:
        assert file.text("words") == "some"
        for name in ("number", "many"):
            with pytest.raises(ValueError, match=f"{name} is .*, where a short string is expected"):
                file.text(name)
    zeros(tmp_path / "y.npz", "words", (), f"<U{2**20}")
    with npy.Npz(str(tmp_path / "y.npz")) as file, pytest.raises(ValueError, match="a short string is expected"):
        file.text("words")


def test_statistics_of_another_width_are_refused_by_their_shape(tmp_path, toy_network):
    """A covariance of zeros that would take 3.2 GB, whichever of the two shapes is wrong; and words as many."""
    mean, covariance = packed((8,), "<f8", 64), packed((8, 8), "<f8", 512)
    for others in (dict(mu=packed((20_000,), "<f8", 160_000)), dict(mu=mean)):
        path = zeros(tmp_path / "ref.npz", "sigma", (20_000, 20_000), "<f8", **others)
        with frugal(), pytest.raises(UserError, match=r"another network: .* covariance \[20000, 20000\], where toy has 8"):
            find(path, toy_network, None)
    for name, dtype in (("about", f"<U{2**28}"), ("num", f"<U{2**28}")):
        path = zeros(tmp_path / "ref.npz", name, (), dtype, mu=mean, sigma=covariance)
        with frugal(), pytest.raises(UserError, match=f"{name} is .*expected"):
            find(path, toy_network, None)


def test_pictures_of_more_pixels_than_an_image_file_may_have_are_refused_by_their_shape(tmp_path):
    path = zeros(tmp_path / "x.npz", "arr_0", (2, 20_000, 20_000, 3), "u1")
    with frugal(), pytest.raises(UserError, match=r"arr_0 is uint8\[2, 20000, 20000, 3\], pictures of more than 89,478,485 pixels"):
        of_npz(path, "--samples")
    many = archive(tmp_path / "x.npz", arr_0=packed((200, 20_000, 20_000, 3), "u1"))
    with frugal(), pytest.raises(UserError, match="240,000,000,000 bytes, and holds 0"):
        of_npz(many, "--samples")


def test_weights_that_unpack_to_more_than_any_network_are_refused(tmp_path):
    path = zeros(tmp_path / "w.npz", "w", (2**31,), "u1")
    with frugal(), pytest.raises(UserError, match="unpacks to more than 1,073,741,824 bytes"):
        weights.read(path)
