"""A workdir in a bucket, gs://. No network here: Google's service is a local folder that behaves as an object store does.

What stands in: epath's access to gs:// (which neither appends nor moves about in a file), the question to Google's client whether a
bucket has folders, and the address that Orbax gives to TensorStore. All else is the real thing, Orbax's own way with gs:// paths
included: it commits by a file, where it renames folders on a disk.
"""

import codecs
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from etils import epath
from etils.epath import backend, gpath
from orbax.checkpoint._src.path import gcs_utils
from sampling import sampled

from tinygen import evaluate, report, sample, train
from tinygen.checkpoints import store as checkpoint
from tinygen.data.codec import Codec
from tinygen.data.labels import Labels
from tinygen.errors import UserError
from tinygen.media import Array
from tinygen.sampling.conditions import Asked
from tinygen.workdir import lock
from tinygen.workdir.files import folder as opened


class Upload(io.BytesIO):
    """A file that is being written to a store: no way back in it, and there whole once it is closed."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def close(self):
        if not self.closed:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(self.getvalue())
        super().close()

    def tell(self):
        # As TensorFlow's buckets do. It is no OSError, of which zipfile would make the best: numpy.savez must not write there directly.
        raise NotImplementedError("this file system does not support tell()")

    seek = tell


class Bucket(backend._OsPathBackend):
    """epath's operations on gs://, in a folder."""

    def __init__(self, root):
        self.root = root

    def here(self, path):
        path = str(path)
        assert path.startswith("gs://"), path
        return f"{self.root}/{path.removeprefix('gs://')}"

    def there(self, path):
        return f"gs://{path.removeprefix(f'{self.root}/')}"

    def open(self, path, mode):
        if "r" in mode:
            return super().open(self.here(path), mode)
        assert "w" in mode, f"object stores know no mode {mode!r}"
        upload = Upload(Path(self.here(path)))
        return upload if "b" in mode else codecs.getwriter("utf-8")(upload)

    def glob(self, path):
        return [self.there(found) for found in super().glob(self.here(path))]

    def walk(self, top, **keywords):
        for folder, folders, files in super().walk(self.here(top), **keywords):
            yield self.there(folder), folders, files

    def replace(self, path, dst):
        assert Path(self.here(path)).is_file(), "object stores rename no folders"
        Path(self.here(path)).replace(self.here(dst))

    rename = replace


def on_one_path(name):
    def operation(self, path, *arguments, **keywords):
        plain = backend._OsPathBackend(), self.here(path)
        keywords.pop("mode", None)
        return getattr(plain[0], name)(plain[1], *arguments, **keywords)

    return operation


for name in ("exists", "isdir", "listdir", "makedirs", "mkdir", "rmtree", "remove", "stat"):
    setattr(Bucket, name, on_one_path(name))


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The folder in which gs://bucket lies."""
    store = Bucket(tmp_path)
    store.makedirs("gs://bucket")
    monkeypatch.setattr(backend, "tf_backend", store)
    monkeypatch.setattr(gpath, "_GCS_BACKENDS", {store})
    monkeypatch.setattr(gpath, "_is_zonal_gcs_bucket", lambda bucket: False)
    monkeypatch.setitem(sys.modules, "google.cloud.storage", ModuleType("google.cloud.storage"))
    monkeypatch.setattr(gcs_utils, "get_bucket", lambda name: SimpleNamespace(hierarchical_namespace_enabled=False))
    monkeypatch.setattr(gcs_utils, "get_kvstore_for_gcs", lambda path: {"driver": "file", "path": store.here(path)})
    return tmp_path / "bucket"


RUN = "gs://bucket/runs/faces"


@pytest.mark.slow
def test_a_run_in_a_bucket_is_resumed_sampled_evaluated_and_reported_as_on_a_disk(
    bucket, tmp_path, monkeypatch, tiny, finished, stop_during, metrics_of, saved_arrays
):
    monkeypatch.chdir(tmp_path)
    config = tiny(train={"keep": 1})
    with monkeypatch.context() as patch:
        stop_during(patch, 13)
        assert train.main(config, RUN) == 143
    assert train.main(config, RUN) == 0
    run = bucket / "runs" / "faces"
    names = {path.name for path in finished.workdir.iterdir() if ".tfevents." not in path.name}
    assert {path.name for path in run.iterdir() if ".tfevents." not in path.name} == names - {".lock"}
    assert any(".tfevents." in path.name for path in run.iterdir())
    assert not [path for path in tmp_path.iterdir() if path.name not in ("bucket",)]  # such as a folder called "gs:"
    assert metrics_of(run) == metrics_of(finished.workdir)
    assert [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()] == [
        "start",
        "stopped",
        "start",
        "finished",
    ]
    ours, theirs = saved_arrays(RUN, 20), saved_arrays(finished.workdir, 20)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["20"]  # the older ones were removed

    assert [sampled(RUN, num=2, batch_size=2) for _ in range(2)] == [0, 0]  # the second in place of the first
    assert {path.name for path in (run / "sampled" / "20").iterdir()} == {"00000.png", "00001.png", "grid.png", "samples.json"}
    assert [evaluate.main(RUN, step=None, ema=True) for _ in range(2)] == [0, 0]
    assert len((run / "eval.jsonl").read_text().splitlines()) == 2
    assert report.main([RUN], out=None) == 0
    assert "faces" in (run / "report.html").read_text()


def test_arrays_are_written_to_a_bucket(bucket):
    folder = opened("gs://bucket/arrays")
    codec = Codec(medium=Array("curve"), spec={}, conditions=(Labels(("a",)),))
    sample.write(folder, np.ones((2, 1)), Asked({"label": np.zeros(2, int)}, None, ([],)), codec, {})
    assert np.load(bucket / "arrays" / "samples.npz")["x"].shape == (2, 1)


def test_without_googles_client_a_bucket_is_refused_before_anything_is_written(bucket, monkeypatch, curve):
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    with pytest.raises(UserError, match=r"pip install 'tinygen\[gcs\]'"):
        train.main(curve(), RUN)
    with pytest.raises(UserError, match="gcs"):
        checkpoint.make_manager(epath.Path(RUN), keep=1, keep_every=0)
    assert not list(bucket.iterdir())


def test_what_a_store_says_of_a_bucket_that_cannot_be_written_reaches_the_user(bucket, monkeypatch):
    def refuse(self, path, **keywords):
        import tensorflow as tf  # which takes seconds

        raise tf.errors.PermissionDeniedError(None, None, "no permission\nfor this")

    monkeypatch.setattr(Bucket, "makedirs", refuse)
    with (
        pytest.raises(UserError, match="faces cannot be written: no permission for this"),
        lock.own(epath.Path(RUN)),
    ):
        pass
