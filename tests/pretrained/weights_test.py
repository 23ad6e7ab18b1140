"""Files of weights, good and bad. The tests need no PyTorch: they write its formats with the standard library's pickle and zipfile."""

import collections
import hashlib
import io
import os
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from confinement import confined

from tinygen.errors import UserError
from tinygen.pretrained import weights

KINDS = {"float32": "FloatStorage", "float16": "HalfStorage", "int64": "LongStorage", "float64": "DoubleStorage", "bool": "BoolStorage"}


class Stored:
    """What a pickler writes as a reference to numbers elsewhere."""

    def __init__(self, array, key):
        self.array, self.key = array, key


class View:
    """What a pickler writes as a call of PyTorch's function that makes a tensor."""

    def __init__(self, stored, offset, shape, strides):
        self.arguments = (stored, offset, shape, strides, False, collections.OrderedDict())

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.arguments


@pytest.fixture(autouse=True)
def torch_by_name(monkeypatch):
    """Modules that only have names: a pickler writes a class or function as its name, and looks whether it is there."""
    for module, names in {"torch": KINDS.values(), "torch._utils": ["_rebuild_tensor_v2"]}.items():
        made = types.ModuleType(module)
        for name in names:
            setattr(made, name, types.new_class(name, (), {}, lambda body, of=module: body.update(__module__=of)))
        monkeypatch.setitem(sys.modules, module, made)


def pickled(value, tail=()):
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, Stored):
                return ("storage", getattr(sys.modules["torch"], KINDS[obj.array.dtype.name]), obj.key, "cpu", obj.array.size, *tail)
            return None

    file = io.BytesIO()
    Pickler(file, protocol=2).dump(value)
    return file.getvalue()


def as_zip(value, storages=()):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", value if isinstance(value, bytes) else pickled(value))
        archive.writestr("archive/byteorder", "little")
        for stored in storages:
            archive.writestr(f"archive/data/{stored.key}", stored.array.tobytes())
    return file.getvalue()


def as_stream(value, storages=(), little=True):
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": little, "type_sizes": {"int": 4}}]
    data = b"".join(pickle.dumps(each, 2) for each in head)
    data += (value if isinstance(value, bytes) else pickled(value, (None,))) + pickle.dumps([each.key for each in storages], 2)
    return data + b"".join(struct.pack("<q", each.array.size) + each.array.tobytes() for each in storages)


FORMATS = pytest.mark.parametrize("form", [as_zip, as_stream])


@pytest.fixture
def tensors():
    """(an ordered dict of views as PyTorch's pickler finds it, the storages, the arrays that are meant)"""
    numbers = np.arange(24, dtype=np.float32)
    counts, halves = np.array([7]), np.linspace(0, 1, 5, dtype=np.float16)
    one, two, three = Stored(numbers, "0"), Stored(counts, "1"), Stored(halves, "2")
    state = collections.OrderedDict(
        [
            ("whole", View(one, 0, (2, 3, 4), (12, 4, 1))),
            ("turned", View(one, 12, (4, 3), (1, 4))),
            ("number", View(two, 0, (), ())),
            ("empty", View(one, 0, (0, 3), (3, 1))),
            ("half", View(three, 1, (2,), (2,))),
        ]
    )
    state._metadata = {"version": 2}  # PyTorch hangs such things onto its dicts
    meant = {
        "whole": numbers.reshape(2, 3, 4), "turned": numbers[12:].reshape(3, 4).T, "number": counts[0],
        "empty": np.zeros((0, 3), np.float32), "half": halves[1:4:2],
    }  # fmt: skip
    return state, (one, two, three), meant


def write(folder, data, name="weights.pth"):
    (folder / name).write_bytes(data)
    return folder / name


@FORMATS
def test_both_formats_of_pytorch_give_their_tensors(form, tensors, tmp_path):
    state, storages, meant = tensors
    path = write(tmp_path, form(state, storages))
    arrays, sha256 = weights.read(path)
    assert list(arrays) == list(meant)
    for name, array in meant.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_npz_and_safetensors_are_told_by_what_they_hold(tmp_path):
    meant = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b.c": np.float16([1, 2])}
    np.savez(tmp_path / "weights.npz", **meant)
    safetensors.numpy.save_file(meant, tmp_path / "weights.safetensors")
    for path in (tmp_path / "weights.npz", (tmp_path / "weights.safetensors").rename(tmp_path / "weights.bin")):
        arrays, _ = weights.read(path)
        assert arrays.keys() == meant.keys()
        for name, array in meant.items():
            np.testing.assert_array_equal(arrays[name], array)


class Malicious:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@FORMATS
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused_and_nothing_is_run(form, protocol, tmp_path):
    marker = tmp_path / "executed"
    path = write(tmp_path, form(pickle.dumps({"a": Malicious(marker)}, protocol)))
    with pytest.raises(
        UserError, match=r"weights.pth: its pickle (would run '\w+.mkdir'|has an instruction that tensors do not need)"
    ) as caught:
        weights.read(path)
    assert "\n" not in str(caught.value)
    assert not marker.exists()
    pickle.loads(pickle.dumps({"a": Malicious(marker)}, protocol))
    assert marker.exists()  # as it would have been


def test_objects_in_an_npz_are_refused_and_nothing_is_run(tmp_path):
    marker = tmp_path / "executed"
    np.savez(tmp_path / "weights.npz", a=np.array([Malicious(marker)], object))
    with pytest.raises(UserError, match=r"weights.npz: an array of objects, where numbers are expected"):
        weights.read(tmp_path / "weights.npz")
    assert not marker.exists()


@FORMATS
@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (7,), (1,)),
        (3, (4,), (1,)),
        (0, (2, 3), (4, 1)),
        (-1, (2,), (1,)),
        (5, (3,), (-1,)),
        (0, (10**6, 10**6), (0, 0)),
        (0, (2, 2), (1,)),
    ],
)
def test_a_tensor_that_reaches_beyond_its_numbers_is_refused(form, offset, shape, strides, tmp_path):
    numbers = Stored(np.arange(6, dtype=np.float32), "0")
    path = write(tmp_path, form({"a": View(numbers, offset, shape, strides)}, [numbers]))
    with pytest.raises(UserError, match=r"a tensor('s shape or strides are invalid| reaches beyond its numbers)"):
        weights.read(path)


@FORMATS
def test_a_shape_whose_product_would_never_end_is_refused_at_once(form, tmp_path):
    view = View(Stored(np.zeros(4, np.float32), "0"), 0, (2**2000,) * 20000, (0,) * 20000)
    with confined(), pytest.raises(UserError, match="a tensor's shape or strides are invalid"):
        weights.read(write(tmp_path, form({"a": view}, [view.arguments[0]])))


@FORMATS
def test_more_numbers_than_the_file_has_are_refused(form, tmp_path):
    promised = Stored(np.zeros(1000, np.float32), "0")
    stored = Stored(np.zeros(10, np.float32), "0")
    path = write(tmp_path, form({"a": View(promised, 0, (1000,), (1,))}, [stored]))
    with pytest.raises(UserError, match=r"weights.pth: "):
        weights.read(path)


@FORMATS
def test_a_file_cut_anywhere_is_refused_in_one_line(form, tensors, tmp_path):
    state, storages, _ = tensors
    data = form(state, storages)
    for length in range(0, len(data), 7):
        with pytest.raises(UserError) as caught:
            weights.read(write(tmp_path, data[:length]))
        assert "\n" not in str(caught.value)


@FORMATS
def test_a_file_with_any_byte_changed_gives_arrays_or_is_refused_in_one_line(form, tensors, tmp_path):
    state, storages, _ = tensors
    data = form(state, storages)
    random = np.random.default_rng(0)
    refused = []
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] = random.integers(256)
        try:
            arrays, _ = weights.read(write(tmp_path, bytes(changed)))
        except UserError as error:
            refused.append(str(error))
        else:
            assert all(array.size <= 24 for array in arrays.values())
    assert len(refused) > len(data) / 4
    assert not any("\n" in said for said in refused)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"\n<!DOCTYPE html><html>Not found</html>", "a web page, not weights"),
        (b"just text", "torn, or none of PyTorch's .pth, .npz and .safetensors"),
        (pickle.dumps({"a": 1}), "torn, or none of"),
        (b"\x10\0\0\0\0\0\0\0{not json at all}", "damaged"),
        (b"\x3e\0\0\0\0\0\0\0" + b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}    ' + b"\0", "its a is of type F8_E4M3"),
        (as_zip(pickle.dumps({"a": 1}, 2)), "it does not hold tensors by name"),
        (as_zip(pickle.dumps([], 2)), "it does not hold tensors by name"),
        (as_stream(pickle.dumps({}, 2), little=False), "its numbers are big-endian"),
        (as_zip(b"(" * 110_000), "more than 100,000 instructions"),  # each a mark, under which a stack is kept
        # a key of tuples within tuples, each twice the one before: hashing it would take 2^40 steps
        (as_zip(b"\x80\x02}K\x01q\x00" + b"h\x00\x86q\x00" * 40 + b"Ns."), "damaged, or not one of tensors"),
        (as_zip(b"\x80\x02}K\x01" + b"\x85" * 90_000 + b"Ns."), "damaged, or not one of tensors"),
    ],
    ids=range(12),
)
def test_what_is_no_file_of_weights_is_refused_in_one_line(data, said, tmp_path):
    with pytest.raises(UserError) as caught:
        weights.read(write(tmp_path, data))
    assert said in str(caught.value)
    assert str(tmp_path / "weights.pth") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_zip_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "weights.pth", "w") as archive:
        archive.writestr("readme.txt", b"hello")
    with pytest.raises(UserError, match="neither PyTorch's nor NumPy's"):
        weights.read(tmp_path / "weights.pth")


def test_a_zip_that_unpacks_to_more_than_any_network_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "weights.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(100))
        archive.infolist()[0].file_size = 2**31
    with pytest.raises(UserError, match="unpacks to more than 1,073,741,824 bytes"):
        weights.read(tmp_path / "weights.npz")


@pytest.mark.parametrize("name", weights.NAMES)
def test_a_public_name_on_other_bytes_is_refused_before_they_are_parsed(name, tmp_path):
    path = write(tmp_path, as_zip(pickle.dumps({"a": 1}, 2)), name)
    with pytest.raises(UserError, match=r"not the public file of that name, or torn .*not 6726825d"):
        weights.read(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"nothing.pth: No such file"):
        weights.read(tmp_path / "nothing.pth")
    with pytest.raises(UserError, match="not a regular file"):
        weights.read(tmp_path)
    with pytest.raises(UserError, match=r"--weights=.*nothing.pth: no such file"):
        weights.find(str(tmp_path / "nothing.pth"))
