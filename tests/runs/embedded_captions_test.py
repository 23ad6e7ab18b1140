"""Runs on a text encoder's embeddings: exact when resumed, drawn from prompts, scored with the reference's captions."""

import inspect
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import told
import told_folder
from sampling import sampled

from tinygen import build, eval_fid, train
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints import weights as trained
from tinygen.config import schema
from tinygen.data.condition import Request
from tinygen.errors import UserError
from tinygen.evaluation import generated
from tinygen.pretrained import text_encoder
from tinygen.sampling.conditions import asked
from tinygen.sampling.draw import counted
from tinygen.sampling.settings import configured
from tinygen.training import warm_start

pytestmark = pytest.mark.slow

FEW = dict(steps=4, log_every=2, eval_every=4, preview_every=4, preview_num=8, checkpoint_every=2)


@pytest.fixture(autouse=True, scope="module")
def table():
    """The data set `told`, and no text encoder: training and previews need none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(build.datasets(), "told", told.source)
        row = dict(num=24, side=16, words=told.WORDS, fingerprint="told")
        patch.setitem(
            schema.TABLES["data"], "told", schema.Section("a toy", **{name: schema.key(value, "of a toy") for name, value in row.items()})
        )
        patch.setattr(text_encoder, "load", told.loading(told.encoder(name="nothing")))
        yield


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return told_folder.make(tmp_path_factory.mktemp("embeddings") / "out")


def configuration(tiny, folder, **changes):
    model = dict(name="microdit", patch=8, width=8, depth=1, heads=2, mlp_multiple=8, text_depth=1)
    return config_lib.change(
        tiny(data=dict(name="told"), batch_size=16, text=dict(embeddings=str(folder)), model=model, train=FEW), changes
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny, written):
    """(workdir, config, embeddings) of a run that went its four steps. Shared: only to be read."""
    workdir, config = tmp_path_factory.mktemp("run") / "run", configuration(tiny, written)
    assert train.main(config, str(workdir)) == 0
    return SimpleNamespace(workdir=workdir, config=config, written=written)


def test_a_run_that_goes_on_is_as_if_it_had_not_stopped_though_its_embeddings_moved(run, tiny, tmp_path, saved_arrays, metrics_of):
    moved, workdir = tmp_path / "moved", tmp_path / "run"
    shutil.copytree(run.written, tmp_path / "here")
    first = configuration(tiny, tmp_path / "here", train=dict(steps=2))
    assert train.main(first, str(workdir)) == 0
    (tmp_path / "here").rename(moved)
    assert train.main(configuration(tiny, moved), str(workdir)) == 0
    whole, resumed = saved_arrays(run.workdir, 4), saved_arrays(workdir, 4)
    assert whole.keys() == resumed.keys()
    for name in whole:
        np.testing.assert_array_equal(whole[name], resumed[name])
    assert metrics_of(run.workdir)[-1] == metrics_of(workdir)[-1]


def test_a_run_does_not_go_on_with_embeddings_of_another_content(run, tiny, tmp_path):
    other, workdir = shutil.copytree(run.written, tmp_path / "other"), shutil.copytree(run.workdir, tmp_path / "run")
    tree = json.loads((other / "text.json").read_text())
    tree["splits"]["train"]["values"] = "0" * 64
    (other / "text.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="the data have changed since this run began"):
        train.main(configuration(tiny, other), str(workdir))


def test_it_is_said_what_previews_are_asked_to_show(run):
    assert (run.workdir / "prompts.txt").read_text().splitlines() == [told.WORDS[index % 5] for index in range(8)]


def test_the_embeddings_reach_the_weights(run, saved_arrays):
    early, late = (saved_arrays(run.workdir, step) for step in (2, 4))
    moved = [name for name in late if name.startswith("params/text/project") and np.any(early[name] != late[name])]
    assert moved


@pytest.fixture
def draw(run, tmp_path, monkeypatch):
    """draw(...): samples.json and the files of `tinygen sample`, where there is a text encoder."""
    monkeypatch.setattr(text_encoder, "load", told.loading(told.encoder(), told.encoder("/moved"), told.encoder("/other", "f" * 64)))

    def call(name="out", *, num=4, prompts=("red",), **options):
        settings = options.pop("settings", {})
        folder = tmp_path / name
        sampled(run.workdir, folder, ema=False, num=num, settings=settings, batch_size=8, prompts=prompts, **options)
        return json.loads((folder / "samples.json").read_text()), [(folder / f"{n:05d}.png").read_bytes() for n in range(num)]

    return call


def test_prompts_are_drawn_in_turn(draw):
    told_of, _ = draw(prompts=("red", "a house"))
    assert [row["prompt"] for row in told_of["samples"]] == ["red", "a house", "red", "a house"]


def test_an_encoder_that_has_moved_is_given_and_is_the_same(draw):
    assert draw("here")[1] == draw("moved", encoder="/moved")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(prompts=()), "give --prompt=WORDS, or --prompts=FILE"),
        (dict(encoder="/other"), r"has other weights .*give --encoder=DIR"),
        (dict(encoder="/nowhere"), "--encoder=/nowhere: there is no such folder"),
        (dict(prompts=("one two three four five six seven eight nine",)), "has 9 tokens, and this model reads 8"),
        (dict(negative=" "), "is empty"),
        (dict(negative="red", settings=dict(guidance=1.0)), "--guidance=1 turns off"),
    ],
    ids=str,
)
def test_a_mistake_is_told_of_and_nothing_is_written(draw, tmp_path, options, said):
    with pytest.raises(UserError, match=said):
        draw(**options)
    assert not (tmp_path / "out").exists()


def test_where_the_encoder_is_gone_it_is_asked_for(draw, monkeypatch):
    monkeypatch.setattr(text_encoder, "load", told.loading(told.encoder("/moved")))
    with pytest.raises(UserError, match=r"there is no such folder\nIf it has moved, give --encoder=DIR"):
        draw()


def test_an_encoder_for_a_model_without_one_is_refused(finished):
    saved = store.find(finished.workdir)
    with pytest.raises(UserError, match="--encoder=/encoder: this model was trained without a text encoder"):
        asked(saved.codec, Request(encoder="/encoder"), 4)


def test_what_samples_are_told_is_what_the_captions_were_stored_as(draw, run):
    codec = store.find(run.workdir).codec
    given = asked(codec, Request(prompts=["\ufeffred", "a house"], negative="blue"), 5, guidance=2.0)  # as it was copied from a file
    stored = build.data_source(run.config).splits["train"].take(np.array([0, 2, 0, 2, 0]))  # "red", "a house"
    np.testing.assert_array_equal(given.cond["embed"][np.arange(5)], stored["embed"])
    np.testing.assert_array_equal(given.cond["embed_mask"], stored["embed_mask"])
    away = build.data_source(run.config).splits["train"].take(np.array([1] * 5))
    np.testing.assert_array_equal(given.negative["embed"][np.arange(5)], away["embed"])


def test_many_samples_take_the_memory_of_their_prompts(draw, run):
    codec = store.find(run.workdir).codec
    given = asked(codec, Request(prompts=["red", "a house"]), 10**6)
    assert len(given.cond["embed"]) == 10**6
    held = inspect.getclosurevars(given.cond["embed"].read).nonlocals["halves"]
    assert held.shape == (2, 8, told.FEATURES)


@pytest.mark.parametrize("num", [24, 30])
def test_samples_are_scored_with_the_reference_s_captions_read_when_they_are_drawn(run, num):
    source = build.data_source(run.config)
    reference = source.splits["train"]
    cond, rule = generated.conditions(source.codec, ["data"], num, reference)
    assert rule == "as the reference's"
    order = cond["embed"].index
    assert sorted(order[:24]) == list(range(24))
    rows = np.array([3, 0, num - 1])
    np.testing.assert_array_equal(cond["embed"][rows], reference.take(order[rows])["embed"])
    np.testing.assert_array_equal(cond["embed_mask"], reference.take(order)["embed_mask"])
    pictures = SimpleNamespace(fingerprint="these")
    assert generated.facts_of(cond, pictures) == {"embed": order.tolist(), "embed_mask": cond["embed_mask"].tolist(), "of": "these"}


@pytest.mark.parametrize(("labels", "reference"), [(["all"], True), (["data"], False)])
def test_scores_without_the_reference_s_captions_are_refused(run, labels, reference):
    source = build.data_source(run.config)
    with pytest.raises(UserError, match="--labels=data and --ref=train or validation"):
        generated.conditions(source.codec, labels, 8, source.splits["train"] if reference else None)


@pytest.mark.parametrize("text", ["embeddings", "tokens"])
def test_eval_fid_draws_with_the_captions_of_the_run_s_own_data(run, tiny, classifier, tmp_path, monkeypatch, text):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    workdir, num = shutil.copytree(run.workdir, tmp_path / "run") if text == "embeddings" else tmp_path / "run", 8
    if text == "tokens":
        assert train.main(configuration(tiny, "", text=dict(embeddings="", tokens="bytes"), train=dict(steps=2)), str(workdir)) == 0
    call = dict(
        ckpt=str(workdir), samples=None, num=num, scores=["kid"], features=str(classifier), preset=None, weights=None, step=None, ema=True,
        settings={}, points={}, seed=0, batch_size=8, force=False,
    )  # fmt: skip
    assert eval_fid.main(ref=None, labels=[], **call) == 0
    (line,) = (json.loads(each) for each in (workdir / "eval.jsonl").read_text().splitlines())
    assert line["protocol"]["labels"] == "as the reference's"
    assert line["protocol"]["reference_num"] == len(build.data_source(run.config).splits["train"])
    refused = "a split of its own data" if text == "embeddings" else "the reference has no prompts of this model's data"
    with pytest.raises(UserError, match=refused):
        eval_fid.main(ref="digits8", labels=["data"], **call)


def test_pictures_are_drawn_from_rows_that_are_looked_up(run):
    saved = store.find(run.workdir)
    parts = build.parts(configured(saved.config, {}, saved.codec), saved.codec)
    source = build.data_source(run.config)
    cond, _ = generated.conditions(saved.codec, ["data"], 12, source.splits["train"])
    whole = {name: rows[:] for name, rows in cond.items()}
    weights = trained.load(saved, parts, ema=True)
    drawn = [counted(weights, parts, each, num=12, seed=0, batch_size=8)[0] for each in (cond, whole)]
    np.testing.assert_array_equal(*drawn)


def test_weights_that_read_another_encoder_s_captions_do_not_begin_a_run(run, tiny, tmp_path):
    saved = store.find(run.workdir)
    codec = build.data_source(run.config).codec
    warm_start.check_data(run.config, codec, saved)
    tree = codec.to_json()
    tree["text"] |= dict(encoder="/other", sha256="f" * 64)
    with pytest.raises(UserError, match="text encoder: /encoder -> /other"):
        warm_start.check_data(run.config, type(codec).from_json(tree), saved)
