"""A checkpoint's arrays: onto any mesh bit for bit, refused where they are another model's, and as another run's beginning."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from tinygen import build, train
from tinygen.checkpoints import store, weights
from tinygen.data.codec import Codec
from tinygen.errors import UserError
from tinygen.media import Array
from tinygen.nn.names import path_name

CODEC = Codec(medium=Array("curve"), spec={})


def saved(workdir, it):
    """The manager of a workdir with the state as its checkpoint 3."""
    manager = store.make_manager(epath.Path(workdir), keep=1, keep_every=0)
    store.save(manager, 3, it.state, it.config, CODEC, {})
    manager.wait_until_finished()
    return manager


def arrays(tree):
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


MESHES = [
    ((1, 8, 1), (8, 1, 1)),
    ((2, 4, 1), (1, 1, 1)),
    ((1, 1, 1), (2, 2, 2)),
    ((2, 2, 2), (1, 2, 1)),
    ((1, 1, 2), (1, 4, 1)),
]


@pytest.mark.parametrize(("before", "after"), MESHES, ids=str)
def test_a_state_comes_back_bit_for_bit_on_another_mesh_of_as_many_devices_or_not(made, tiny, tmp_path, before, after):
    old, new = made(tiny(), *before), made(tiny(), *after)
    with saved(tmp_path, old) as manager:
        restored = store.restore(manager, 3, new.abstract, new.shardings)
    assert jax.tree.structure(restored) == jax.tree.structure(old.state)
    shardings, back, moved = arrays(new.shardings), arrays(restored), 0
    for name, leaf in arrays(old.state).items():
        np.testing.assert_array_equal(back[name], leaf, err_msg=name, strict=True)
        assert back[name].sharding == shardings[name], name
        moved += not leaf.sharding.is_equivalent_to(back[name].sharding, leaf.ndim)
    assert moved > 0  # or this tests nothing


@pytest.mark.parametrize("least", [store.SLICE, 1])
def test_large_arrays_are_saved_in_parts_by_their_replicas_and_small_ones_whole(made, curve, tmp_path, monkeypatch, least):
    """Cutting a part off compiles a computation for each shape and device."""
    old, new, cuts, cut = made(curve(), 8, 1, 1), made(curve(), 1, 2, 1), [], jax.lax.slice_in_dim
    monkeypatch.setattr(jax.lax, "slice_in_dim", lambda *args, **keywords: cuts.append(1) or cut(*args, **keywords))
    monkeypatch.setattr(store, "SLICE", least)
    with saved(tmp_path, old) as manager:
        restored = store.restore(manager, 3, new.abstract, new.shardings)
    assert bool(cuts) == (least == 1)
    for name, leaf in arrays(old.state).items():
        np.testing.assert_array_equal(arrays(restored)[name], leaf, err_msg=name, strict=True)


def test_a_state_that_is_donated_right_after_the_save_is_saved_as_it_was(made, curve, tmp_path):
    it = made(curve(), 1, 8, 1)
    expected = {name: np.array(leaf) for name, leaf in arrays(it.state).items()}
    overwrite = jax.jit(lambda state: jax.tree.map(jnp.zeros_like, state), donate_argnums=0)
    with store.make_manager(epath.Path(tmp_path), keep=1, keep_every=0) as manager:
        store.save(manager, 1, it.state, it.config, CODEC, {})
        overwrite(it.state)
        manager.wait_until_finished()
        restored = store.restore(manager, 1, it.abstract, it.shardings)
    for name, leaf in arrays(restored).items():
        np.testing.assert_array_equal(leaf, expected[name], err_msg=name)


def like(array, **changes):
    return jax.ShapeDtypeStruct(**{"shape": array.shape, "dtype": array.dtype, **changes})


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda layer: {"kernel": layer["kernel"]}, "unexpected (1): {}/layers/0/bias"),
        (lambda layer: {**layer, "gain": like(layer["bias"])}, "missing (1): {}/layers/0/gain"),
        (lambda layer: {**layer, "bias": like(layer["bias"], shape=(24,))}, "other shape (1): {}/layers/0/bias [16] -> [24]"),
        (lambda layer: {**layer, "bias": like(layer["bias"], dtype=jnp.bfloat16)}, "other dtype (1): {}/layers/0/bias float32 -> bfloat16"),
    ],
    ids=["unexpected", "missing", "shape", "dtype"],
)
def test_any_other_leaf_is_refused_by_name_in_the_whole_state_and_in_a_branch(made, curve, tmp_path, change, line):
    it = made(curve(), 1, 1, 1)

    def changed(tree):
        return {**tree, "layers": {**tree["layers"], "0": change(tree["layers"]["0"])}}

    def places(tree):
        return jax.tree.map(lambda _: it.shardings.step, tree)

    other = it.abstract._replace(params=changed(it.abstract.params))
    branch = {"ema": changed(it.abstract.ema), "buffers": it.abstract.buffers}
    with saved(tmp_path, it) as manager, pytest.raises(UserError) as whole:
        store.restore(manager, 3, other, places(other))
    with pytest.raises(UserError) as part:
        store.find(tmp_path).restore_weights(branch, places(branch))
    for refused, name in ((whole, "params"), (part, "ema")):
        first, second, advice = str(refused.value).splitlines()
        assert (first.startswith(f"{tmp_path}/checkpoints/3 "), second) == (True, f"  {line.format(name)}")
        assert advice


def test_a_long_list_of_other_leaves_is_cut_short(made, curve, tiny, tmp_path):
    old, new = made(curve(), 1, 1, 1), made(tiny(), 1, 1, 1)
    with saved(tmp_path, old) as manager, pytest.raises(UserError, match=r"missing \(\d+\): .* and \d+ more") as refused:
        store.restore(manager, 3, new.abstract, new.shardings)
    assert len(str(refused.value).splitlines()) <= 6


@pytest.fixture
def source(curve, tmp_path):
    """The workdir of a run to begin from."""
    assert train.main(curve(train=dict(steps=4)), str(tmp_path / "source")) == 0
    return tmp_path / "source"


def begun_from(source, curve, **changes):
    """The configuration of a run whose updates are tiny, so that its weights tell where they came from."""
    return curve(init=dict(ckpt=str(source), **changes.pop("init", {})), optim=dict(lr=1e-6), **{"train": dict(steps=1), **changes})


def start_event(workdir):
    return json.loads((workdir / "events.jsonl").read_text().splitlines()[0])


@pytest.mark.parametrize("mesh", [dict(), dict(data=2, fsdp=4)], ids=["the same mesh", "another mesh"])
def test_a_run_begins_from_another_runs_averaged_weights_with_fresh_steps_and_moments(source, curve, tmp_path, saved_arrays, mesh):
    assert train.main(begun_from(source, curve, mesh=mesh, sharding=dict(min_size=8), seed=9), str(tmp_path / "run")) == 0
    theirs, ours = saved_arrays(source, 4), saved_arrays(tmp_path / "run", 1)
    names = [name.removeprefix("ema/") for name in theirs if name.startswith("ema/")]
    assert len(names) == 4
    for name in names:
        for branch in ("params", "ema"):
            np.testing.assert_allclose(ours[f"{branch}/{name}"], theirs[f"ema/{name}"], atol=2e-6, rtol=0)  # one update of Adam
    assert max(np.abs(theirs[f"params/{name}"] - theirs[f"ema/{name}"]).max() for name in names) > 1e-4  # or the branch was not told apart
    assert (ours["step"], ours["opt_state/adam/count"]) == (1, 1)
    assert start_event(tmp_path / "run")["init"] == {"ckpt": str(source), "step": 4}


def test_a_run_with_its_own_checkpoint_resumes_from_it_although_the_other_run_is_gone(source, curve, tmp_path, saved_arrays):
    for steps in (1, 2):
        assert train.main(begun_from(source, curve, train=dict(steps=steps)), str(tmp_path / "run")) == 0
        shutil.rmtree(source, ignore_errors=True)
    assert saved_arrays(tmp_path / "run", 2)["opt_state/adam/count"] == 2
    with pytest.raises(UserError, match=r"init.ckpt: .* -> "):
        train.main(curve(optim=dict(lr=1e-6), train=dict(steps=2)), str(tmp_path / "run"))


def test_another_models_weights_are_refused_before_the_first_step(source, curve, tmp_path):
    with pytest.raises(UserError, match=r"model.hidden: 16 -> 24") as refused:
        train.main(begun_from(source, curve, model=dict(hidden=24)), str(tmp_path / "run"))
    assert "--config.init.partial=True" in str(refused.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_only_where_it_is_asked_for_are_the_weights_that_fit_taken_and_the_others_named(source, curve, tmp_path, saved_arrays, caplog):
    with caplog.at_level("INFO"):
        train.main(begun_from(source, curve, model=dict(hidden=24), init=dict(partial=True)), str(tmp_path / "run"))
    theirs, ours = saved_arrays(source, 4), saved_arrays(tmp_path / "run", 1)
    np.testing.assert_allclose(ours["params/layers/1/bias"], theirs["ema/layers/1/bias"], atol=2e-6, rtol=0)
    assert np.std(ours["params/layers/0/kernel"]) > 0  # drawn, as ever
    others = ["ema/layers/0/bias [16] -> [24]", "ema/layers/0/kernel [1, 16] -> [1, 24]", "ema/layers/1/kernel [16, 1] -> [24, 1]"]
    assert start_event(tmp_path / "run")["init"] == {"ckpt": str(source), "step": 4, "taken": 1, "of": 4, "other_shape": others}
    assert f"other shape (3): {', '.join(others)}" in caplog.text


def test_where_nothing_fits_partial_is_refused_too(source, tiny, tmp_path):
    with pytest.raises(UserError, match="none of its arrays fits this model"):
        train.main(tiny(init=dict(ckpt=str(source), partial=True)), str(tmp_path / "run"))


def test_a_missing_checkpoint_to_begin_from_is_refused_before_data_are_prepared(curve, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "data_source", lambda config: pytest.fail("prepared data"))
    with pytest.raises(UserError, match=r"config\.init\.ckpt=.*/nowhere: there is no such folder"):
        train.main(begun_from(tmp_path / "nowhere", curve), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_sampling_from_a_checkpoint_of_another_model_is_refused(made, tiny, tmp_path):
    it = made(tiny(), 1, 1, 1)
    saved(tmp_path, it).close()
    found = store.find(tmp_path)
    wider = tiny(model=dict(width=16))
    parts = build.parts(wider, build.data_source(wider).codec)
    with pytest.raises(UserError, match=r"other shape \(\d+\): ema/blocks/0/"):
        weights.load(found, parts, ema=True)
