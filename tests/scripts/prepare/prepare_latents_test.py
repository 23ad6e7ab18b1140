"""scripts/prepare/prepare_latents.py: what it writes, and what it refuses before it encodes."""

import dataclasses
import shutil

import numpy as np
import patch_autoencoder
import prepare_latents
import pytest
from patch_autoencoder import source_of
from PIL import Image

from tinygen.data import latents as sources
from tinygen.errors import UserError
from tinygen.pretrained import autoencoder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The latents of 8x8 digits; shared, so read-only."""
    return patch_autoencoder.make(tmp_path_factory.mktemp("latents"))


@pytest.fixture
def prepare(made, monkeypatch):
    """prepare(out, *words): the exit status of another call."""
    monkeypatch.setattr(autoencoder, "load", patch_autoencoder.load)
    return lambda out, *more, variant="": prepare_latents.main([*patch_autoencoder.words(made.place, variant), f"--out={out}", *more])


@pytest.fixture
def copy(made, tmp_path):
    """A copy of the folder, to be damaged."""
    return shutil.copytree(made.folder, tmp_path / "copy")


def test_captions_come_along(made, prepare, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(4):
        Image.fromarray(np.full((8, 8), 60 * number, np.uint8)).save(tmp_path / "photos" / f"{number}.png")
        (tmp_path / "photos" / f"{number}.txt").write_text(f"grün {number}")
    changes = dict(name="folder", path=tmp_path / "photos", size=8, channels=1, min_side=8)
    assert prepare(tmp_path / "out", *(f"--config.data.{key}={value}" for key, value in changes.items())) == 0
    splits = source_of(tmp_path / "out").splits
    captions = [caption for examples in splits.values() for caption in examples.captions(np.arange(len(examples)))]
    assert sorted(captions) == [f"grün {number}" for number in range(4)]


def test_the_same_command_writes_the_same_bytes(made, prepare, tmp_path):
    assert prepare(tmp_path / "again") == 0
    files = sorted(path.name for path in made.folder.iterdir())
    assert files == ["latents.json", "train.array_record", "validation.array_record"]
    for name in files:
        assert (tmp_path / "again" / name).read_bytes() == (made.folder / name).read_bytes()


def test_a_recipe_that_mirrors_has_mirrored_images_encoded_besides(made, add_row, prepare, tmp_path):
    def mirrored(*, label):
        return dataclasses.replace(made.images, flip=True)

    add_row("data", "digits8", mirrored, dict(label="label"))
    assert prepare(tmp_path / "twice", "--config.data.overfit=20") == 0
    source, found = source_of(tmp_path / "twice"), patch_autoencoder.load(made.place / "patches", "")
    train = source.splits["train"]
    assert len(train) == 40
    images = np.asarray(patch_autoencoder.decode(found.variables, source.codec.domain.unscaled(train.take(np.arange(40))["x"])))
    np.testing.assert_allclose(images[20:], images[:20, :, ::-1], atol=0.01)
    assert len(source.splits["validation"]) == len(made.images.splits["validation"])


@pytest.mark.parametrize(
    ("more", "variant", "error"),
    [
        ((), ":faces", "the images have 3 channels, but the autoencoder patches needs 1"),
        (("--config.data.name=sine",), "", "--config has curve data, but the autoencoder encodes images"),
        (("--config.data.labl=x",), "", "did you mean"),
        (("--batch_size=-1",), "", "--batch_size=-1"),
        (("--autoencoder=nowhere",), "", "--autoencoder=nowhere: there is no such file"),
    ],
)
def test_what_cannot_be_encoded_is_refused_before(prepare, tmp_path, capsys, more, variant, error):
    assert prepare(tmp_path / "out", *more, variant=variant) == 2
    assert error in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sides_that_the_factor_does_not_divide_are_refused(made):
    found = dataclasses.replace(patch_autoencoder.load(made.place / "patches", ""), factor=3)
    with pytest.raises(UserError, match=r"the image size 8x8 is not a multiple of 3.*\n.*config.data.size=9"):
        prepare_latents.check_images(made.images.codec, found)


def test_a_folder_that_is_there_is_left_alone(made, prepare, capsys):
    before = (made.folder / "latents.json").stat().st_mtime_ns
    assert prepare(made.folder) == 2
    assert "already exists" in capsys.readouterr().err
    assert (made.folder / "latents.json").stat().st_mtime_ns == before


def test_a_disk_with_too_little_space_is_refused_before(prepare, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare_latents, "free_bytes", lambda path: 2**20)
    assert prepare(tmp_path / "out") == 2
    assert "1,797 latents need 449 kiB, but only 1 MiB are free" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "status", "error"),
    [
        (OSError(28, "No space left on device", "train.array_record"), 2, "train.array_record: No space left on device"),
        (RuntimeError("write() failed: No space left on device"), 2, "cannot be written: write() failed: No space left"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    ],
)
def test_a_fault_leaves_nothing_behind(prepare, tmp_path, monkeypatch, capsys, fault, status, error):
    encode_split = prepare_latents.encode_split

    def failing(*arguments):
        yield next(encode_split(*arguments))
        raise fault

    monkeypatch.setattr(prepare_latents, "encode_split", failing)
    assert prepare(tmp_path / "out") == status
    assert error in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_later_stage_takes_the_scale_of_the_first(prepare, made, tmp_path, capsys):
    assert prepare(tmp_path / "alike", f"--like={made.folder}", "--config.data.overfit=64") == 0
    first, later = (sources.Prepared.read(folder).latents for folder in (made.folder, tmp_path / "alike"))
    assert (later.scale, later.shift) == (first.scale, first.shift)
    assert f"scale and shift as in {made.folder}" in capsys.readouterr().out


def test_latents_of_another_autoencoder_give_no_scale(prepare, copy, tmp_path, capsys):
    prepared = sources.Prepared.read(copy)
    dataclasses.replace(prepared, latents=dataclasses.replace(prepared.latents, sha256="f" * 64)).write(copy)
    assert prepare(tmp_path / "out", f"--like={copy}") == 2
    assert "ffffffffffffffff), not by" in capsys.readouterr().err
