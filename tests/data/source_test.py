import functools
import itertools

import numpy as np
import pytest

from tinygen.data import builtin as embedded_arrays
from tinygen.data.builtin import images
from tinygen.data.codec import Codec, Field, encode_pixels
from tinygen.data.examples import ArrayExamples
from tinygen.data.labels import Labels
from tinygen.data.source import DataSource, check_batch
from tinygen.errors import UserError
from tinygen.media import Array, Image

NUM = 10  # examples of the counting source: no multiple of the batch sizes below


@pytest.fixture(scope="module")
def counting():
    """A source whose example i is the number i, so that batches show their own order."""
    arrays = {"x": np.arange(NUM), "twice": 2 * np.arange(NUM)}
    held_out = {"x": 100 + np.arange(NUM), "twice": np.zeros(NUM)}
    return DataSource(
        codec=Codec(medium=Array("numbers"), spec={}),
        splits={"train": ArrayExamples(arrays), "validation": ArrayExamples(held_out)},
        fingerprint="f",
    )


def order(source, num, batch_size=4, seed=0, **kwargs):
    """The first `num` batches, as lists of example numbers."""
    return [batch["x"].tolist() for batch in itertools.islice(source.batches("train", batch_size, seed, **kwargs), num)]


def row(*args, **kwargs):
    return list(itertools.chain(*order(*args, **kwargs)))


# Training batches


@pytest.mark.parametrize("batch_size", [1, 4, 15])
def test_batches_are_the_concatenation_of_epochs_that_each_see_every_example_once(counting, batch_size):
    epochs = 6
    seen = row(counting, epochs * NUM // batch_size, batch_size)
    shuffles = [seen[start : start + NUM] for start in range(0, epochs * NUM, NUM)]
    assert all(sorted(shuffle) == list(range(NUM)) for shuffle in shuffles)
    assert len(set(map(tuple, [*shuffles, range(NUM)]))) == epochs + 1  # each another order, none the stored one


def test_the_arrays_of_a_batch_belong_together(counting):
    for batch in itertools.islice(counting.batches("train", 4, seed=0), 5):
        np.testing.assert_array_equal(batch["twice"], 2 * batch["x"])


@pytest.mark.parametrize("start", [1, 2, 7])
def test_batch_i_is_the_same_wherever_reading_starts(counting, start):
    assert order(counting, 3, start=start) == order(counting, start + 3)[start:]


def test_seed_and_attempt_each_give_another_order(counting):
    orders = [order(counting, 5, seed=seed, attempt=attempt) for seed, attempt in itertools.product((0, 1, 2), repeat=2)]
    assert len(set(map(str, orders))) == 9
    assert order(counting, 5, seed=2, attempt=1) == orders[7]


def test_processes_together_read_the_rows_that_one_would(counting):
    whole = order(counting, 6)
    first, second = (order(counting, 6, rows=rows) for rows in ([0, 3], [2, 1]))
    assert [[a, d, c, b] for (a, b), (c, d) in zip(first, second, strict=True)] == [[a, b, c, d] for a, b, c, d in whole]


def test_an_unknown_split_is_refused_with_the_nearest(counting):
    with pytest.raises(UserError, match="did you mean 'validation'"):
        counting.batches("valid", 4, seed=0)


def test_overfitting_trains_on_the_first_examples_only_and_leaves_validation_alone(counting):
    few = counting.overfitting(3)
    assert sorted(row(few, 3, batch_size=1)) == [0, 1, 2]
    assert set(row(few, 10)) == {0, 1, 2}
    assert few.splits["validation"] is counting.splits["validation"]
    assert few.fingerprint != counting.fingerprint  # it is other data: a run on all of it is not resumed on these
    assert counting.overfitting(0) is counting
    with pytest.raises(UserError, match="only 10 examples"):
        counting.overfitting(NUM + 1)


# One pass over the held-out examples


@pytest.mark.parametrize("batch_size", [1, 4, 5, 16])
def test_an_epoch_covers_everything_once_in_whole_batches_padded_with_weight_zero(counting, batch_size):
    batches = list(counting.epoch("validation", batch_size))
    assert {len(batch[key]) for batch in batches for key in ("x", "twice", "weight")} == {batch_size}
    x, weight = (np.concatenate([batch[key] for batch in batches]) for key in ("x", "weight"))
    assert weight.dtype == np.float32
    assert x[weight == 1].tolist() == list(range(100, 100 + NUM))
    assert weight.tolist() == [1.0] * NUM + [0.0] * (len(x) - NUM)
    assert len(x) - NUM < batch_size
    assert set(x) == set(range(100, 100 + NUM))  # padding repeats real examples: no model meets zeros


def test_an_epoch_can_be_cut_short(counting):
    batches = list(counting.epoch("validation", 4, limit=6))
    assert np.concatenate([batch["x"][batch["weight"] == 1] for batch in batches]).tolist() == list(range(100, 106))


# The check of the first batch

SPEC = {"x": Field(shape=(4, 4, 1), dtype="float32", low=-1.0, high=1.0), "label": Field(shape=(), dtype="int32", low=0, high=2)}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1))
GOOD = {"x": encode_pixels(PIXELS), "label": np.array([0, 1, 2, 0, 1, 2], np.int32)}


def with_one(value):
    x = GOOD["x"].copy()
    x[2, 1, 3, 0] = value
    return x


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(x=PIXELS.astype(np.float32)), "is its scale wrong"),
        (dict(x=GOOD["x"] / 127.5), "is its scale wrong"),
        (dict(x=with_one(1.01)), "spans"),
        (dict(x=GOOD["x"].astype(np.float64)), "float64"),
        (dict(x=PIXELS.astype(np.uint8)), "uint8"),
        (dict(x=GOOD["x"].transpose(0, 3, 1, 2)), r"\[1, 4, 4\] per example, the codec says float32\[4, 4, 1\]"),
        (dict(x=GOOD["x"][..., 0]), "per example"),
        (dict(x=with_one(np.nan)), "non-finite"),
        (dict(x=with_one(np.inf)), "non-finite"),
        (dict(x=np.full_like(GOOD["x"], -1)), "hardly varies"),
        (dict(label=np.array([0, 1, 3, 0, 1, 2], np.int32)), "'label' spans"),
        (dict(label=np.array([0, 1, -1, 0, 1, 2], np.int32)), "'label' spans"),
        (dict(label=GOOD["label"].astype(np.int64)), "int64"),
        (dict(label=np.eye(3, dtype=np.int32)[GOOD["label"]]), "per example"),
    ],
)
def test_a_first_batch_that_breaks_its_codecs_promise_is_refused(change, said):
    codec = Codec(medium=Image(), spec=SPEC, conditions=(Labels(("a", "b", "c")),))
    check_batch(GOOD, codec)
    with pytest.raises(UserError, match=said) as caught:
        check_batch(GOOD | change, codec)
    assert "\n" not in str(caught.value)


def test_a_first_batch_without_what_the_codec_names_is_refused():
    with pytest.raises(UserError, match="'label' is missing"):
        check_batch({"x": GOOD["x"]}, Codec(medium=Image(), spec=SPEC, conditions=(Labels(("a", "b", "c")),)))


def test_a_field_may_be_bounded_on_one_side_or_none():
    codec = Codec(medium=Array("any"), spec={"x": Field(shape=(1,), dtype="float32"), "y": Field(shape=(1,), dtype="float32", high=0.0)})
    x = np.array([[-9.0], [9.0]], np.float32)
    check_batch({"x": x, "y": -abs(x)}, codec)
    with pytest.raises(UserError, match="'y' spans"):
        check_batch({"x": x, "y": x}, codec)


# The embedded sources

SOURCES = {
    "digits": (images.digits, "label", (28, 28, 1), 4500, 500, 10),
    "digits8": (functools.partial(images.digits8, tokens=False), "label", (8, 8, 1), 1618, 179, 10),
    "pixel_faces": (images.pixel_faces, "hair_color", (16, 16, 3), 9000, 1000, None),
}


@pytest.fixture(scope="module", params=SOURCES)
def embedded(request):
    """(source, shape, training examples, held-out examples, classes where they are balanced)"""
    make, label, *facts = SOURCES[request.param]
    return make(label=label), *facts


def test_an_embedded_source_keeps_its_codecs_promise(embedded):
    source, shape, train, held_out, _ = embedded
    assert source.codec.medium.name == "image"
    assert source.codec.spec["x"] == Field(shape=shape, dtype="float32", low=-1.0, high=1.0)
    assert {name: len(split) for name, split in source.splits.items()} == {"train": train, "validation": held_out}
    for split in source.splits.values():
        everything = split.take(np.arange(len(split)))
        check_batch(everything, source.codec)
        assert (everything["x"].min(), everything["x"].max()) == (-1.0, 1.0)
    check_batch(next(source.batches("train", 64, seed=0)), source.codec)


def test_nothing_is_both_trained_on_and_held_out(embedded):
    source = embedded[0]
    train, held_out = ({x.tobytes() for x in split.take(np.arange(len(split)))["x"]} for split in source.splits.values())
    assert not train & held_out


def test_every_class_is_named_and_occurs_in_both_splits_digits_in_equal_shares(embedded):
    source, _, _, _, balanced = embedded
    classes = len(source.codec.labels)
    for split in source.splits.values():
        labels = split.take(np.arange(len(split)))["label"]
        counts = np.bincount(labels, minlength=classes)
        assert len(counts) == classes == len(set(source.codec.labels))
        assert counts.min() > 0
        if balanced:
            assert classes == balanced
            # digits: 450 and 50 a class; the 8x8 ones came as 174 to 183 a class
            assert counts.min() >= 0.94 * len(split) / balanced


@pytest.mark.parametrize("name", ["digits", "pixel_faces"])
def test_the_last_rows_of_the_stored_file_are_held_out_in_their_order(name):
    make, label, _, train, held_out, _ = SOURCES[name]
    source, (arrays, _) = make(label=label), embedded_arrays.load(name)
    batch = source.splits["validation"].take(np.arange(held_out))
    np.testing.assert_array_equal(source.codec.medium.decode(batch["x"]), arrays["x"][train:])
    np.testing.assert_array_equal(batch["label"], arrays[label][train:])


def test_small_digits_show_their_17_grey_levels_evenly_spread():
    source = images.digits8(label="", tokens=False)
    pixels = source.codec.medium.decode(source.splits["train"].take(np.arange(1618))["x"])
    assert np.unique(pixels).tolist() == [round(level * 255 / 16 + 1e-9) for level in range(17)]


def test_without_a_label_there_is_no_condition_and_with_another_it_is_other_data():
    bare, labelled = images.digits8(label="", tokens=False), images.digits8(label="label", tokens=False)
    assert bare.codec.labels == ()
    assert bare.codec.spec.keys() == bare.splits["train"].take(np.arange(2)).keys() == {"x"}
    assert bare.fingerprint != labelled.fingerprint


def test_a_face_can_be_conditioned_on_any_attribute_and_an_unknown_one_is_refused():
    assert len(images.pixel_faces(label="hat").codec.labels) == 2
    with pytest.raises(UserError, match="did you mean 'glasses'"):
        images.pixel_faces(label="glases")
