import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

from tinygen import train
from tinygen.workdir import writers
from tinygen.workdir.files import Folder, folder
from tinygen.workdir.writers import EventFile


def read(workdir):
    """[(step, tag, plugin, values)] of all events, as TensorBoard reads them, file by file."""
    paths = sorted(workdir.glob("events.out.tfevents.*"))
    events = [event for path in paths for event in EventFileLoader(str(path)).Load()]
    return [
        (event.step, value.tag, value.metadata.plugin_data.plugin_name, tensor_util.make_ndarray(value.tensor))
        for event in events
        for value in event.summary.value
    ]


def test_tensorboard_reads_numbers_pictures_and_texts(tmp_path):
    picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(1, 2, 3, 3)
    events = EventFile(folder(tmp_path))
    events.write_scalars(1, {"loss": 0.25, "lr": 1e-3})
    events.write_images(2, {"samples": picture})
    events.write_texts(3, {"samples": ["# to be\n* or not", "that"]})
    events.close()
    loss, lr, image, text = read(tmp_path)
    assert loss == (1, "loss", "scalars", np.float32(0.25))
    assert lr == (1, "lr", "scalars", np.float32(1e-3))
    assert image[:3] == (2, "samples", "images")
    assert image[3][:2].tolist() == [b"3", b"2"]  # width, height
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(image[3][2]))), picture[0])
    assert text[:3] == (3, "samples", "text")
    assert text[3].tolist() == [b"    # to be\n    * or not", b"    that"]  # Markdown shows such lines as they are


def test_an_event_is_in_the_file_at_once_on_a_disk_and_later_where_every_append_writes_the_whole_file(tmp_path, monkeypatch):
    events = EventFile(folder(tmp_path))
    events.write_scalars(1, {"loss": 1.0})
    assert len(read(tmp_path)) == 1
    monkeypatch.setattr(Folder, "append_interval", 120.0)
    events.write_scalars(2, {"loss": 1.0})
    assert len(read(tmp_path)) == 1
    events.close()
    assert [step for step, *_ in read(tmp_path)] == [1, 2]


def test_events_that_found_no_room_are_written_with_the_next(tmp_path, monkeypatch):
    events, append = EventFile(folder(tmp_path)), Folder.append
    events.write_scalars(1, {"loss": 1.0})

    def full(self, name, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "append", full)
    with pytest.raises(OSError, match="No space left"):
        events.write_scalars(2, {"loss": 1.0})
    monkeypatch.setattr(Folder, "append", append)
    events.write_scalars(3, {"loss": 1.0})
    assert [step for step, *_ in read(tmp_path)] == [1, 2, 3]


def test_what_waits_for_room_is_bounded(tmp_path, monkeypatch):
    events, append = EventFile(folder(tmp_path)), Folder.append
    monkeypatch.setattr(writers, "LARGEST", 300)
    monkeypatch.setattr(Folder, "append", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for step in range(100):
        with pytest.raises(OSError, match="No space left"):
            events.write_scalars(step, {"loss": 1.0})
    assert len(events.pending.getvalue()) < 500
    monkeypatch.setattr(Folder, "append", append)
    events.write_scalars(100, {"loss": 1.0})
    assert read(tmp_path)[-1][0] == 100


def test_a_run_whose_workdir_was_away_for_a_while_loses_no_event(curve, tmp_path, monkeypatch):
    """The run's own way to TensorBoard: no pause after an error, in which events would be lost."""
    workdir, append, calls = tmp_path / "run", Folder.append, []

    def away(self, name, content):
        calls.append(name)
        if name.startswith("events.out") and 2 <= sum(each == name for each in calls) <= 4:
            raise OSError(2, "No such file or directory")
        append(self, name, content)

    monkeypatch.setattr(Folder, "append", away)
    assert train.main(curve(train=dict(steps=20, log_every=2, eval_every=0, preview_every=0)), str(workdir)) == 0
    assert [step for step, tag, *_ in read(workdir) if tag == "loss"] == [1, *range(2, 21, 2)]


def test_a_file_that_has_grown_large_is_followed_by_another(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "LARGEST", 100)
    events = EventFile(folder(tmp_path))
    for step in range(4):
        events.write_scalars(step, {"loss": 1.0})
    events.close()
    assert len(list(tmp_path.iterdir())) > 1
    assert sorted(step for step, *_ in read(tmp_path)) == [0, 1, 2, 3]
