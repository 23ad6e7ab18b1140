"""Drawn faces: the same for ever, told truly, and built into a data set once."""

import io
import itertools
import json
import re
import subprocess
import sys
from importlib import resources

import dicebear
import numpy as np
import pytest
from PIL import Image

from tinygen.data.avatars import builder as avatars_builder
from tinygen.data.avatars import drawing
from tinygen.data.avatars.styles import STYLES
from tinygen.data.tfds import images as tfds
from tinygen.errors import UserError

NUM = 24


@pytest.fixture(scope="module", params=STYLES)
def style(request):
    """Each style in turn: the tests of one follow each other, since DiceBear takes half a second to read it."""
    return request.param


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder where `NUM` faces have been drawn."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    avatars_builder.builder("micah", NUM, folder).download_and_prepare()
    return folder


@pytest.fixture
def no_packages(monkeypatch):
    monkeypatch.setattr(drawing, "PACKAGES", {"a_package_nobody_has": "dicebear-core"})


@pytest.mark.slow
def test_every_style_draws_64x64_faces_that_differ(style):
    faces = [drawing.draw(style, number) for number in range(3)]
    images = [np.asarray(Image.open(io.BytesIO(face.png))) for face in faces]
    assert {(image.shape, image.dtype.name) for image in images} == {((64, 64, 3), "uint8")}
    assert all(image.std() > 20 for image in images)
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(images, 2))


def test_dicebear_draws_what_was_chosen(style):
    """All that is told of a face is among the options that DiceBear says it followed; it knows every name of the table."""
    for part in STYLES[style].parts:
        variants = set(part.bare).union(*part.words.values())
        assert not part.component or variants <= drawing._definition(style).components()[part.component].variants().keys()
    for number in range(12):
        options, _, _ = drawing.choose(style, number)
        followed = dicebear.Avatar(drawing._definition(style), options).to_json()["options"]
        for key, value in options.items():
            if key.endswith(("Variant", "Color")) and key not in STYLES[style].options:
                assert followed[key] == value
            if key.endswith("Probability") and value == 0:
                assert key.replace("Probability", "Variant") not in followed


def test_a_face_depends_on_its_style_and_number_alone(monkeypatch):
    """Not on how many are drawn, by how many processes, or on what Python's hashes begin with."""
    drawn = []
    for num, workers, seed in ((5, 1, "1"), (7, 2, "2")):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        drawn.append(list(drawing.draw_all("micah", num, workers)))
    assert drawn[0] == drawn[1][:5] == [drawing.draw("micah", number) for number in range(5)]
    assert drawing.draw("open-peeps", 0).png != drawn[0][0].png


def test_faces_are_those_of_the_first_release():
    """They change only with `Avatars.VERSION`: whoever trains on them must be able to draw them again."""
    assert drawing.choose("micah", 2)[2] == (
        "a pouting person with tan skin, shoulder-length blond hair, square red glasses, stubble and a white hoop earring, "
        "in a red shirt, on a purple background"
    )


def test_captions_say_what_the_labels_say_in_english(style):
    names = drawing.attributes(style)
    for number in range(150):
        _, labels, caption = drawing.choose(style, number)
        for attribute, label in labels.items():
            name = names[attribute][label]
            # "long hair" is told as "long brown hair": word by word
            told = all(re.search(rf"\b{re.escape(word)}\b", caption) for word in name.split())
            assert told or name == drawing.NONE, (caption, attribute, name)
        assert re.match("an? ([a-z]+ )?person ", caption)
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|  |[{}]| ,|and and|, and", caption)


def test_every_label_is_drawn_and_none_is_the_first(style):
    names = drawing.attributes(style)
    seen = {attribute: set() for attribute in names}
    for number in range(500):
        for attribute, label in drawing.choose(style, number)[1].items():
            seen[attribute].add(label)
    for attribute, labels in names.items():
        assert seen[attribute] == set(range(len(labels))), attribute
        assert drawing.NONE not in labels[1:]
        assert len(set(labels)) == len(labels)


def test_who_wears_a_hat_shows_no_hair_and_is_not_called_bald():
    names = drawing.attributes("micah")
    worn = [(labels, caption) for _, labels, caption in (drawing.choose("micah", i) for i in range(100)) if labels["hat"]]
    assert worn
    for labels, caption in worn:
        assert names["hair"][labels["hair"]] == names["hair_color"][labels["hair_color"]] == "none"
        assert "hair" not in caption
        assert "turban" in caption


def test_what_was_read_is_what_was_drawn(built):
    builder = avatars_builder.builder("micah", NUM, built)
    train, validation = (builder.as_data_source(split) for split in ("train", "validation"))
    assert (len(train), len(validation)) == (NUM - 1, 1)
    for number, example in ((7, train[7]), (NUM - 1, validation[0])):
        face = drawing.draw("micah", number)
        assert np.array_equal(example["image"], np.asarray(Image.open(io.BytesIO(face.png))))
        assert example["caption"].decode() == face.caption
        assert {attribute: example[attribute] for attribute in face.labels} == face.labels
    assert builder.info.features["hair"].names[0] == "none"


def test_what_was_drawn_is_drawn_no_more(built, no_packages):
    builder = avatars_builder.builder("micah", NUM, built)
    builder.download_and_prepare()
    assert len(builder.as_data_source("train")) == NUM - 1


def test_faces_are_made_smaller_on_reading_and_at_their_own_size_are_the_data_that_they_were(built):
    def read(size):
        return tfds.avatars(style="micah", num=NUM, size=(size,), label="hair_color", flip=False, data_dir=built, prepares=True)

    small, whole = read(32), read(64)
    first, large = (source.splits["train"].take(np.array([0]))["x"] for source in (small, whole))
    assert (first.shape, large.shape) == ((1, 32, 32, 3), (1, 64, 64, 3))
    assert small.codec.spec["x"].shape == (32, 32, 3)
    assert np.abs(first - large.reshape(1, 32, 2, 32, 2, 3).mean((2, 4))).mean() < 0.05  # the same picture; Lanczos overshoots at edges
    assert whole.fingerprint == "8f92bf5a4c832b7d" != small.fingerprint  # as of the first release: whoever trains on it goes on


def test_tfds_knows_the_styles_by_name(built):
    assert avatars_builder.tfds.builder(f"avatars/micah-{NUM}", data_dir=built).is_prepared()
    default = avatars_builder.tfds.builder("avatars/lorelei", data_dir=built)
    assert (default.builder_config.name, default.info.file_format.value) == ("lorelei-20000", "array_record")


def test_author_and_licence_stand_beside_the_data(built):
    builder = avatars_builder.builder("micah", NUM, built)
    for text in (builder.info.redistribution_info.license, (builder.data_path / "LICENSE").read_text()):
        assert "Micah Lanier" in text
        assert "CC BY 4.0" in text
    assert builder.info.metadata["author"] == "Micah Lanier"
    assert builder.info.metadata["packages"].keys() == set(drawing.PACKAGES.values())
    assert "Micah Lanier" in builder.info.citation


def test_every_style_names_its_author_and_the_licence_that_its_package_states(style):
    meta = json.loads((resources.files("dicebear_styles") / f"{style}.json").read_text("utf-8"))["meta"]
    assert (STYLES[style].licence, STYLES[style].url) == (meta["license"]["name"], meta["source"]["url"])
    assert STYLES[style].author in meta["creator"]["name"]


def test_files_of_a_killed_process_are_deleted_and_drawn_again(tmp_path):
    builder = avatars_builder.builder("micah", 2, str(tmp_path))
    torn = builder.data_path.parent / "incomplete.ABCDEF_1.0.0"
    for folder in (torn, builder.data_path):
        folder.mkdir(parents=True)
        (folder / "avatars-train.array_record-00000-of-00001").write_text("half a file")
    builder.download_and_prepare()
    assert not torn.exists()
    assert len(builder.as_data_source("train")) == 1


def test_an_interrupted_drawing_leaves_no_data_and_no_processes(tmp_path, monkeypatch):
    started = []
    begin = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: started.append(begin(*args, **options)) or started[-1])

    def interrupted(process):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(drawing, "_received", interrupted)
        with pytest.raises(KeyboardInterrupt):
            avatars_builder.builder("micah", 300, str(tmp_path)).download_and_prepare()
    assert started
    assert all(process.returncode is not None for process in started)
    assert not [path for path in tmp_path.rglob("*") if "1.0.0" in path.name]


@pytest.mark.slow
def test_two_processes_that_want_the_same_faces_do_not_disturb_each_other(tmp_path):
    run = f"from tinygen.data.avatars import builder as a; b = a.builder('micah', 3, {str(tmp_path)!r})"
    code = f"{run}; b.download_and_prepare(); print(len(b.as_data_source('train')))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [(process.communicate()[0], process.returncode) for process in both] == [("2\n", 0)] * 2
    assert sorted(path.name for path in (tmp_path / "avatars" / "micah-3").iterdir()) == ["1.0.0"]


def test_a_process_that_cannot_draw_is_not_waited_for():
    with pytest.raises(RuntimeError, match="ended early, with status 1"):
        list(drawing.draw_all("a style that its workers do not know", 1))


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path, no_packages):
    with pytest.raises(UserError, match=re.escape("drawing avatars needs dicebear-core: pip install 'tinygen[avatars]'")):
        avatars_builder.builder("micah", NUM, str(tmp_path)).download_and_prepare()
    with pytest.raises(UserError, match="pip install"):
        drawing.draw("micah", 0)
    assert not list(tmp_path.iterdir())


def test_an_unknown_style_and_too_few_faces_are_refused(tmp_path):
    with pytest.raises(UserError, match="unknown style 'mica': did you mean 'micah'"):
        avatars_builder.builder("mica", NUM, str(tmp_path))
    with pytest.raises(UserError, match="unknown style ''; known: "):
        avatars_builder.builder("")
    with pytest.raises(UserError, match="unknown style"):
        drawing.draw("mica", 0)
    with pytest.raises(UserError, match="two are needed"):
        avatars_builder.builder("micah", 1, str(tmp_path))


def test_the_drawing_module_is_light():
    """Every process that draws imports it."""
    heavy = "{'jax', 'tensorflow', 'tensorflow_datasets', 'dicebear', 'resvg_py', 'PIL'}"
    code = f"import sys, tinygen.data.avatars.drawing; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
