import hashlib
import io
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import plays
import prepare_embedded
import pytest

from tinygen.data import builtin

FOLDER = Path(builtin.__file__).parent
SHAPES = {"digits": (5000, 28, 28, 1), "digits8": (1797, 8, 8, 1), "pixel_faces": (10000, 16, 16, 3)}


@pytest.fixture(scope="module")
def loaded():
    return {name: builtin.load(name) for name in builtin.NAMES}


def rgb(colours):
    """uint8 [K, 3] from '#rrggbb' strings."""
    return np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours], np.uint8)


@pytest.mark.parametrize("name", builtin.NAMES)
def test_pixels_are_bytes_of_the_promised_shape_and_use_their_whole_range(loaded, name):
    arrays, meta = loaded[name]
    assert arrays["x"].dtype == np.uint8
    assert arrays["x"].shape == SHAPES[name]
    assert arrays["x"].max() == meta["max_value"] == {"digits": 255, "digits8": 16, "pixel_faces": 255}[name]


@pytest.mark.parametrize("name", builtin.NAMES)
def test_every_label_column_is_named_and_every_value_occurs(loaded, name):
    arrays, meta = loaded[name]
    assert set(arrays) == {"x", *meta["labels"]}
    for column, names in meta["labels"].items():
        assert arrays[column].dtype == np.uint8
        assert np.unique(arrays[column]).tolist() == list(range(len(names))), column
        assert len(set(names)) == len(names), column


@pytest.mark.parametrize("name", builtin.NAMES)
def test_no_image_stands_twice_so_none_is_both_trained_on_and_held_out(loaded, name):
    x = loaded[name][0]["x"]
    assert len({image.tobytes() for image in x}) == len(x)


@pytest.mark.parametrize("name", builtin.NAMES)
def test_a_tenth_is_held_out(loaded, name):
    arrays, meta = loaded[name]
    assert meta["validation"] == len(arrays["x"]) // 10


def test_held_out_digits_are_stratified(loaded):
    counts = {
        name: np.bincount(arrays["label"][-meta["validation"] :]).tolist() for name, (arrays, meta) in loaded.items() if "label" in arrays
    }
    assert counts["digits"] == [50] * 10
    assert set(counts["digits8"]) == {17, 18}


@pytest.mark.parametrize("name", ["digits", "digits8"])
def test_any_100_rows_hold_all_ten_digits(loaded, name):
    label = loaded[name][0]["label"]
    assert all(len(set(label[start : start + 100])) == 10 for start in range(len(label) - 99))


def test_small_digits_are_those_of_scikit_learn_with_their_labels(loaded):
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    theirs = {image.astype(np.uint8).tobytes(): label for image, label in zip(bunch.images, bunch.target, strict=True)}
    arrays = loaded["digits8"][0]
    ours = {image.tobytes(): label for image, label in zip(arrays["x"], arrays["label"], strict=True)}
    assert ours == theirs


def test_the_labels_of_the_faces_are_what_the_script_drew(loaded):
    arrays = loaded["pixel_faces"][0]
    rng = np.random.RandomState(prepare_embedded.SEED)
    rows = [prepare_embedded.draw_face(rng)[1] for _ in range(1000)]
    for column in prepare_embedded.FACE_LABELS:
        assert [row[column] for row in rows] == arrays[column][:1000].tolist(), column


def test_the_corner_of_a_face_has_the_colour_of_its_background_label(loaded):
    arrays = loaded["pixel_faces"][0]
    np.testing.assert_array_equal(arrays["x"][:, 0, 0], rgb(prepare_embedded.BACKGROUND.values())[arrays["background"]])


def test_every_face_shows_at_least_four_pixels_of_its_hair_colour(loaded):
    arrays = loaded["pixel_faces"][0]
    hair = rgb(prepare_embedded.HAIR.values())[arrays["hair_color"]]
    assert (arrays["x"] == hair[:, None, None]).all(-1).sum((1, 2)).min() >= 4


def test_faces_are_the_right_way_up_hats_in_the_five_top_rows(loaded):
    arrays = loaded["pixel_faces"][0]
    wearing = arrays["hat"] == 1
    colour = rgb(prepare_embedded.HAT.values())[arrays["hat_color"][wearing] - 1]
    is_hat = (arrays["x"][wearing] == colour[:, None, None]).all(-1)
    assert is_hat[:, :5].sum((1, 2)).min() >= 10
    assert not is_hat[:, 5:].any()


@pytest.mark.parametrize("column", ["glasses", "beard", "hat", "earrings"])
def test_a_fifth_to_two_fifths_of_the_faces_wear_each_thing(loaded, column):
    assert 0.2 <= loaded["pixel_faces"][0][column].mean() <= 0.4


@pytest.mark.parametrize(("coarse", "fine"), [("glasses", "glasses_style"), ("beard", "beard_style"), ("hat", "hat_color")])
def test_coarse_and_fine_labels_agree(loaded, coarse, fine):
    arrays = loaded["pixel_faces"][0]
    np.testing.assert_array_equal(arrays[coarse] == 1, arrays[fine] > 0)


@pytest.mark.parametrize("column", ["hair", "mouth"])
def test_the_name_of_a_style_begins_with_the_name_of_its_kind(loaded, column):
    arrays, meta = loaded["pixel_faces"]
    kinds, styles = meta["labels"][column], meta["labels"][f"{column}_style"]
    for kind, style in set(zip(arrays[column].tolist(), arrays[f"{column}_style"].tolist(), strict=True)):
        assert styles[style].split()[0] == kinds[kind].split()[0]


@pytest.mark.parametrize("name", builtin.NAMES)
def test_licence_and_package_are_in_the_licence_file(loaded, name):
    meta = loaded[name][1]
    section = (FOLDER / "LICENSES.md").read_text("utf-8").split(f"## {name}.npz.xz")[1].split("\n## ")[0]
    assert meta["name"] == name
    assert meta["licence"] in section
    assert meta["attribution"]
    assert meta["source"].split(",")[0].split(" (")[0] in section


def test_the_plays_licence_and_package_are_in_the_licence_file():
    meta = builtin.plays()[1]
    section = (FOLDER / "LICENSES.md").read_text("utf-8").split("## shakespeare.json.xz")[1]
    assert meta["licence"] in section
    assert meta["source"].split(",")[0] in section
    assert (FOLDER / builtin.PLAYS).stat().st_size < 650_000
    assert builtin.fingerprint_of_plays() == hashlib.sha256((FOLDER / builtin.PLAYS).read_bytes()).hexdigest()


def test_a_play_becomes_plain_text():
    markdown = (
        "# Macbeth\n\n### SCENE I. A heath.\n\n_Enter a Witch,\nand CAT_\n\n\n**First Witch**  \n_\\[Aside]_  \n\\--When?  \n__\\[Reads]_\n"
    )
    said = "Macbeth\n\nSCENE I. A heath.\n\n[Enter a Witch,\nand CAT]\n\nFirst Witch:\n[Aside]\n--When?\n[Reads]\n"
    assert plays.plain(markdown) == said


def test_preparing_the_plays_notices_a_change(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare_embedded, "plays", lambda: ({"A": "A\n\n1"}, {"validation": ["A"]}))
    path = tmp_path / builtin.PLAYS
    assert prepare_embedded.shakespeare(path, check=True)
    assert not prepare_embedded.shakespeare(path, check=False)
    assert not prepare_embedded.shakespeare(path, check=True)
    monkeypatch.setattr(prepare_embedded, "plays", lambda: ({"A": "A\n\n2"}, {"validation": ["A"]}))
    assert prepare_embedded.shakespeare(path, check=True)
    assert [line.split(None, 1)[1] for line in capsys.readouterr().out.splitlines()][0::2] == ["differs", "the same"]


def test_the_files_together_take_little_room():
    sizes = {name: (FOLDER / f"{name}.npz.xz").stat().st_size for name in builtin.NAMES}
    assert sizes["digits"] < 720_000
    assert sizes["digits8"] < 60_000
    assert sizes["pixel_faces"] < 500_000


@pytest.mark.parametrize("name", builtin.NAMES)
def test_the_files_tell_nothing_of_when_they_were_made(name):
    with zipfile.ZipFile(io.BytesIO(lzma.decompress((FOLDER / f"{name}.npz.xz").read_bytes()))) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_the_fingerprint_is_the_hash_of_the_file():
    assert builtin.fingerprint("digits8") == hashlib.sha256((FOLDER / "digits8.npz.xz").read_bytes()).hexdigest()


@pytest.mark.parametrize("function", [builtin.load, builtin.fingerprint])
@pytest.mark.parametrize("name", ["mnist", "../embedded/digits"])
def test_an_unknown_name_lists_the_known_ones(function, name):
    with pytest.raises(KeyError, match="digits, digits8, pixel_faces"):
        function(name)


def test_loading_imports_nothing_heavy():
    code = "import sys; from tinygen.data import builtin; builtin.load('digits8'); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parents[2], capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in modules
    assert not {"jax", "flax", "grain", "tensorflow", "sklearn", "PIL"} & set(modules)


def test_packing_is_undone_by_loading_and_notices_a_change(tmp_path, monkeypatch):
    arrays, meta = (
        {"x": np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3), "skin": np.array([1], np.uint8)},
        {"labels": {"skin": ["a", "b"]}},
    )
    packed = prepare_embedded.pack(arrays, meta)
    (tmp_path / "digits.npz.xz").write_bytes(packed)
    monkeypatch.setattr(builtin.resources, "files", lambda _: tmp_path)
    loaded_arrays, loaded_meta = builtin.load("digits")
    np.testing.assert_equal(loaded_arrays, arrays)
    assert loaded_meta == meta
    assert prepare_embedded.differences(packed, packed) == []
    assert prepare_embedded.differences(packed, prepare_embedded.pack({"x": arrays["x"] + 1}, meta)) == ["skin", "x"]


def test_preparing_without_the_packages_says_in_one_line_which_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert prepare_embedded.main([f"--out={tmp_path}"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "pip install mlxtend" in message
    assert "resvg-py" in message
    assert not list(tmp_path.iterdir())
