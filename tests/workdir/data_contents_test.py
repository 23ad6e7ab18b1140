"""Changed data are named by what has changed, as far as the workdir of a run knows."""

import json

import prepare_text
import pytest
import told
from etils import epath
from PIL import Image

from tinygen import config, train
from tinygen.data import contents, naming
from tinygen.data.builtin import images
from tinygen.data.captions.embedded import embedded
from tinygen.data.captions.tokenized import tokenized
from tinygen.data.contents import FILE, Contents
from tinygen.data.images.folder import folder
from tinygen.data.text.sources import text
from tinygen.errors import UserError
from tinygen.pretrained import text_encoder
from tinygen.workdir.files import folder as opened
from tinygen.workdir.manifest import data_difference, keep_contents

FOLDER, TEXT = (
    {key: value for key, value in config.base(data=dict(name=name)).data.to_dict().items() if key not in ("name", "overfit")}
    for name in ("folder", "text")
)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "run").mkdir()
    return epath.Path(tmp_path / "run")


@pytest.fixture
def photos(tmp_path):
    for number in range(10):
        put(tmp_path / "photos" / f"{number}.png", number)
    return tmp_path / "photos"


def put(path, number):
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (16, 16), (number, 0, 0)).save(path)


def pictures(root, **changes):
    return folder(**{**FOLDER, "path": str(root), "size": (8,), **changes})


def words(root, **changes):
    return text(**{**TEXT, "path": str(root), "length": 8, "known": None, **changes})


def said_of(workdir, before, now):
    assert before.fingerprint != now.fingerprint
    return data_difference(opened(workdir), before.fingerprint, now)


def test_files_that_were_added_removed_and_changed_are_named(photos, workdir):
    before = pictures(photos)
    keep_contents(opened(workdir), before)
    put(photos / "new.png", 0)
    (photos / "3.png").unlink()
    for number in (4, 5, 6, 7):
        put(photos / f"{number}.png", 100)
    said = "1 file added: 'new.png'; 1 file removed: '3.png'; 4 files changed: '4.png', '5.png', '6.png', ..."
    assert said_of(workdir, before, pictures(photos)) == said


def test_a_picture_that_can_no_longer_be_read_is_one_that_was_removed(photos, workdir):
    before = pictures(photos)
    keep_contents(opened(workdir), before)
    (photos / "3.png").write_text("words")
    assert said_of(workdir, before, pictures(photos)) == "1 file removed: '3.png'"


def test_other_labels_and_captions_of_the_same_pictures_are_named_by_the_pictures(photos, workdir):
    def described(kind, word):
        lines = [dict(file_name=f"{number}.png", kind="ab"[number % 2], text=str(number)) for number in range(10)]
        lines[2] |= dict(kind=kind)
        lines[8] |= dict(text=word)
        (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return pictures(photos, label="kind"), tokenized(pictures(photos), tokens="bytes", length=8, vocabulary=0)

    (labels, captions), (other_labels, other_captions) = described("a", "8"), described("b", "eight")
    keep_contents(opened(workdir), labels)
    assert said_of(workdir, labels, other_labels) == "1 file with another label: '2.png'"
    keep_contents(opened(workdir), captions)  # of other data, as its fingerprint says: written anew
    assert said_of(workdir, captions, other_captions) == "1 file with another caption: '8.png'"


def test_files_of_documents_are_named(tmp_path, workdir):
    for name in ("a", "b", "sub/c"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(f"words of {name}\n<|endoftext|>\nmore of them")
    before = words(tmp_path / "texts")
    keep_contents(opened(workdir), before)
    (tmp_path / "texts" / "sub" / "c.txt").write_text("other words\n<|endoftext|>\nmore of them")
    (tmp_path / "texts" / "d.txt").write_text("new")
    said = "1 file added: 'd.txt'; 1 file changed: 'sub/c.txt'"
    assert said_of(workdir, before, words(tmp_path / "texts")) == said
    assert "the vocabulary: " in said_of(workdir, before, words(tmp_path / "texts", tokenizer="characters"))


def test_embeddings_of_other_data_are_refused_by_the_files_that_are_others(photos, tmp_path, monkeypatch):
    for number in range(10):
        (photos / f"{number}.txt").write_text(f"number {number}")
    monkeypatch.setattr(text_encoder, "load", told.loading())
    recipe = config.base(data=dict(name="folder", path=str(photos), size=8))
    prepare_text.prepare(recipe, "/encoder", tmp_path / "out", 8, 4, "--config=x")
    (photos / "6.txt").write_text("another")
    with pytest.raises(UserError, match=r"the captions of validation have changed .* \(1 file with another caption: '6.png'\)"):
        embedded(pictures(photos), str(tmp_path / "out"))
    put(photos / "new.png", 0)
    with pytest.raises(UserError, match=r"belongs to other data \(1 file added: 'new.png'\)"):
        embedded(pictures(photos), str(tmp_path / "out"))


def test_what_is_no_file_of_the_users_is_told_in_words():
    before, now = (Contents(facts={"the TFDS set": f"mnist/3.0.{number}", "its splits": "train, test"}) for number in (0, 1))
    assert contents.changes(before, now) == ["the TFDS set: mnist/3.0.0 -> mnist/3.0.1"]
    [long] = contents.changes(Contents(facts={"its use": "\x1b" + "x" * 10**5}), Contents(facts={"its use": "y"}))
    assert long.isprintable()
    assert len(long) < 300
    assert images.digits(label="label").contents.facts.keys() == {"digits, as the package holds it"}


def test_a_run_keeps_what_its_data_consist_of_once(photos, workdir):
    made = pictures(photos)
    train.show_data(opened(workdir), made, 4)
    path = workdir / FILE
    kept = json.loads(path.read_text())
    assert kept["fingerprint"] == made.fingerprint
    assert kept["files"] == {each.name: each.digest for split in made.splits.values() for each in split.pictures}
    path.write_text(json.dumps(kept))
    train.show_data(opened(workdir), made, 4)
    assert path.read_text() == json.dumps(kept)
    path.write_text(path.read_text()[:100])  # torn
    train.show_data(opened(workdir), made, 4)
    assert json.loads(path.read_text()) == kept


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"fingerprint": "another"}', '{"a":' * 10**5, "\udcff"], ids=range(6))
def test_without_a_list_of_the_old_data_the_fingerprints_are_reported(text, photos, workdir):
    before = pictures(photos)
    (workdir / FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    put(photos / "new.png", 0)
    now = pictures(photos)
    prints = f"their fingerprint was {before.fingerprint} and is {now.fingerprint}"
    assert said_of(workdir, before, now) == f"{prints}; data_files.json, which would list the earlier contents, is missing"


@pytest.mark.parametrize("files", [None, 7, ["a"], {"3.png": 7, "4.png": "x", "\x1b[31m" + "x" * 10**5: "y"}], ids=str)
def test_a_list_that_somebody_else_wrote_is_only_read(files, photos, workdir):
    before = pictures(photos)
    (workdir / FILE).write_text(json.dumps({"fingerprint": before.fingerprint, "files": files, "facts": {"its examples": [1]}}))
    put(photos / "new.png", 0)
    said = said_of(workdir, before, pictures(photos))
    assert said.isprintable()
    assert len(said) < 500


def test_too_many_files_are_not_kept(photos, workdir, monkeypatch):
    monkeypatch.setattr(contents, "MOST", 9)
    keep_contents(opened(workdir), pictures(photos))
    assert not (workdir / FILE).exists()


def test_a_message_names_a_few_files_and_no_longer_ones_than_a_line_can_hold():
    assert naming.first(["c", "a\n", "b", "d"]) == r"'a\n', 'b', 'c', ..."
    assert len(naming.quoted("x" * 1000)) < 90


@pytest.mark.parametrize("labelled", [False, True])
def test_what_is_known_of_the_examples_that_a_run_shows_names_their_files(labelled, photos, workdir):
    (photos / "4.txt").write_text("the fourth")
    if labelled:
        for number in range(10):
            path = photos / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            (photos / f"{number}.png").rename(path)
        (photos / "4.txt").rename(photos / "a" / "4.txt")
    made = pictures(photos)
    train.show_data(opened(workdir), made, 9)
    rows = json.loads((workdir / "data.json").read_text())
    files = [each.name for each in made.splits["train"].pictures]
    assert [(row["index"], row["file"]) for row in rows] == list(enumerate(files))
    assert [(row["file"], row["caption"]) for row in rows if "caption" in row] == [("a/4.png" if labelled else "4.png", "the fourth")]
    assert [row.get("label") for row in rows] == [name[0] if labelled else None for name in files]
