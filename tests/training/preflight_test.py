import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tinygen import build
from tinygen.checkpoints import store
from tinygen.data.examples import ArrayExamples
from tinygen.errors import UserError
from tinygen.media.preview import Preview
from tinygen.objectives.base import Objective
from tinygen.system import limits
from tinygen.training import preflight


@pytest.fixture
def flown(tmp_path):
    """flown(config): the preflight of a run whose workdir is not there yet, and is not made."""

    def run(config, source=None):
        source = source or build.data_source(config)
        preflight.preflight(config, epath.Path(tmp_path / "run"), source, build.parts(config, source.codec))
        assert not (tmp_path / "run").exists()

    return run


def test_a_sound_run_passes_and_leaves_nothing(flown, curve, tiny):
    flown(curve())
    flown(tiny())


# The disk


@pytest.mark.parametrize(
    ("steps", "every", "keep", "keep_every", "most"),
    [
        (100, 10, 2, 0, 3),  # two, and the one being written
        (100, 0, 2, 0, 1),  # the last step alone
        (20, 10, 3, 0, 2),  # no more than are ever saved
        (100, 10, 2, 50, 4),  # 50 and 100 for good, 90 beside 100, and the one being written
        (100, 10, 1, 10, 10),
        (105, 10, 1, 0, 2),  # the last step is no multiple
    ],
)
def test_the_checkpoints_that_stand_at_once_are_counted(curve, steps, every, keep, keep_every, most):
    config = curve(train=dict(steps=steps, checkpoint_every=every, keep=keep, keep_every=keep_every))
    assert preflight.most_checkpoints(config) == most


def test_a_disk_with_room_for_all_but_one_checkpoint_is_refused_with_both_sizes_and_the_keys(curve, tmp_path, monkeypatch):
    config, workdir = curve(train=dict(steps=100, keep=2)), epath.Path(tmp_path / "run")
    monkeypatch.setattr(limits, "free_bytes", lambda path: 3 * 2**20)
    preflight.check_disk(config, workdir, 2**20)
    with pytest.raises(
        UserError, match=r"3 MiB are free there, but 3 more .* 3 MiB\.\n.* config.train.keep=2.*keep_every=.*checkpoint_every="
    ):
        preflight.check_disk(config, workdir, 2**20 + 1000)


def test_checkpoints_that_are_there_already_need_no_more_room(curve, tmp_path, monkeypatch):
    config, workdir = curve(train=dict(steps=100, keep=2)), epath.Path(tmp_path / "run")
    (workdir / "checkpoints" / "10").mkdir(parents=True)
    monkeypatch.setattr(limits, "free_bytes", lambda path: 2 * 2**20)
    preflight.check_disk(config, workdir, 2**20)


# Parts that do not go together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Denoising(Objective):
    """Calls its model as a denoiser; previews what it is told to."""

    preview_of: str

    def loss(self, model, batch, key, *, train):
        error = jnp.mean(jnp.square(model(batch["x"]) - batch[self.preview_of]))
        return error, {"loss": (error, jnp.ones(()))}

    def preview(self, raw, averaged, batch, keys):
        return {"samples": Preview(averaged(batch["x"]))}


def test_an_objective_that_misses_what_the_data_do_not_have_is_refused_with_both_rows_and_the_place(flown, curve, add_row):
    add_row("objective", "denoising", Denoising, dict(preview_of="z"))
    with pytest.raises(
        UserError, match=r"(?s)config.data.name=toy_sine and .*config.objective.name=denoising .*the loss fails in preflight_test.py.*'z'"
    ):
        flown(curve(objective=dict(name="denoising")))


def test_a_preview_that_has_no_picture_is_refused_unless_none_is_drawn(flown, curve, add_row):
    add_row("objective", "denoising", Denoising, dict(preview_of="y"))
    config = curve(objective=dict(name="denoising"))
    with pytest.raises(UserError, match=r"previews 'samples' of config.data.name=toy_sine, whose kind 'curve' has no picture"):
        flown(config)
    config = curve(objective=dict(name="denoising"), train=dict(preview_every=0))
    flown(config)


def test_a_fault_inside_a_model_keeps_its_traceback(flown, curve, add_row):
    def broken(*, shape, target_shape, hidden, precision, rngs):
        model = build_curve(shape=shape, target_shape=target_shape, hidden=hidden, precision=precision, rngs=rngs)
        model.layers[1].kernel = model.layers[0].kernel  # [1, hidden] in place of [hidden, 1]
        return model

    config = curve()
    build_curve = build.MODELS["toy_curve"]
    add_row("model", "toy_curve", broken, dict(hidden=16))
    with pytest.raises(TypeError, match="have no product"):
        flown(config)


# Data


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_first_batch_of_each_split_is_looked_at(flown, curve, split):
    source = build.data_source(curve())
    wrong = ArrayExamples({"x": np.linspace(0, 255, 64, dtype=np.float32)[:, None], "y": np.zeros((64, 1), np.float32)})
    broken = dataclasses.replace(source, splits={**source.splits, split: wrong})
    with pytest.raises(UserError, match=rf"{split} split of config.data.name=toy_sine: first batch: 'x' spans"):
        flown(curve(), broken)


def test_one_training_batch_is_read_the_runs_first_for_what_comes_later_may_be_skipped(curve, tmp_path):
    config, asked = curve(), []

    class Watched(ArrayExamples):
        def take(self, indices):
            asked.append(indices.tolist())
            return super().take(indices)

    source = build.data_source(config)
    watched = dataclasses.replace(source, splits={**source.splits, "train": Watched(source.splits["train"].arrays)})
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    preflight.preflight(config, epath.Path(tmp_path), watched, build.parts(config, source.codec))
    expected = next(source.batches("train", config.batch_size, config.seed))["x"]
    np.testing.assert_array_equal(source.splits["train"].take(np.array(asked).ravel())["x"], expected)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_an_empty_split_is_refused(flown, curve, split):
    source = build.data_source(curve())
    none = ArrayExamples({key: array[:0] for key, array in source.splits[split].arrays.items()})
    with pytest.raises(UserError, match=f"its {split} split is empty"):
        flown(curve(), dataclasses.replace(source, splits={**source.splits, split: none}))


def test_a_run_that_has_nothing_left_to_do_is_not_looked_at(curve, tmp_path):
    config = curve(train=dict(steps=20))
    source = build.data_source(config)
    empty = dataclasses.replace(source, splits={name: ArrayExamples({}) for name in source.splits})
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    assert store.saved_steps(epath.Path(tmp_path)) == [20]
    preflight.preflight(config, epath.Path(tmp_path), empty, build.parts(config, source.codec))


# What the machine has


def test_a_state_larger_than_a_device_is_refused_with_the_keys(flown, curve, monkeypatch):
    monkeypatch.setattr(limits, "device_bytes", lambda: 500)
    with pytest.raises(UserError, match=r"the state needs .* on a device, which has 500 B\.\n.*config.model, or config.mesh.fsdp"):
        flown(curve())


def test_a_cpus_memory_is_shared_by_its_devices():
    assert limits.device_bytes() == limits.process_bytes() // jax.local_device_count()


@pytest.mark.parametrize("file", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_cgroups_limit_counts_where_it_is_less_than_the_machine_has(tmp_path, file):
    (tmp_path / "memory").mkdir()
    whole = limits.process_bytes(tmp_path)
    for text, expected in {"1000000\n": 1_000_000, "max\n": whole, f"{2**63 - 4096}\n": whole}.items():
        (tmp_path / file).write_text(text)
        assert limits.process_bytes(tmp_path) == expected


@pytest.mark.parametrize(
    ("listed", "path"),
    [("0::/jobs/7\n", "jobs/7"), ("4:cpu:/a\n3:memory:/b/c\n0::/d\n", "d"), ("4:cpu:/a\n3:memory:/b/c\n", "b/c"), ("", "")],
)
def test_a_process_finds_its_own_cgroup(tmp_path, listed, path):
    (tmp_path / "cgroup").write_text(listed)
    assert limits.own_group(tmp_path / "cgroup") == path


def test_free_bytes_are_those_of_the_nearest_folder_and_a_store_tells_none(tmp_path):
    deep = epath.Path(tmp_path / "not" / "yet")
    assert limits.nearest_existing(deep) == epath.Path(tmp_path)
    assert limits.free_bytes(deep) > 0
    assert limits.free_bytes(epath.Path("gs://bucket/run")) is None
