"""What a codec says of data: labels, conditions, pixels, and JSON in between."""

import json

import numpy as np
import pytest

from tinygen.data.codec import Codec, Field, encode_pixels
from tinygen.data.condition import Request, check_answered
from tinygen.data.labels import Labels
from tinygen.errors import UserError
from tinygen.media import Array, Image

SPEC = {"x": Field(shape=(4, 4, 1), dtype="float32", low=-1.0, high=1.0), "label": Field(shape=(), dtype="int32", low=0, high=2)}
LABELLED = Codec(medium=Image(), spec=SPEC, conditions=(Labels(("plain", "striped", "1")),))


def test_a_codec_survives_json():
    again = Codec.from_json(json.loads(json.dumps(LABELLED.to_json())))
    assert again == LABELLED
    assert again.spec["x"].shape == (4, 4, 1)
    assert type(again.spec["x"].shape) is type(again.labels) is tuple


def test_decoding_gives_back_all_256_levels():
    levels = np.arange(256, dtype=np.uint8)
    x = encode_pixels(levels)
    assert (x.dtype, x[0], x[-1]) == (np.float32, -1.0, 1.0)
    np.testing.assert_array_equal(LABELLED.medium.decode(x), levels)


def test_decoding_rounds_to_the_nearest_level_and_clips_what_lies_outside():
    levels = np.arange(256, dtype=np.uint8)
    for nudge in (-0.49, 0.49):
        np.testing.assert_array_equal(LABELLED.medium.decode(encode_pixels(levels) + np.float32(nudge * 2 / 255)), levels)
    assert LABELLED.medium.decode(np.array([-7.0, -1.01, 1.01, 7.0])).tolist() == [0, 0, 255, 255]


def test_a_label_is_given_by_name_or_number_and_a_name_that_is_a_number_is_a_name():
    assert [LABELLED.conditions[0].index(name) for name in ("plain", "striped", "0", "2", "1")] == [0, 1, 0, 2, 2]


@pytest.mark.parametrize(
    ("name", "said"), [("3", "0 to 2"), ("-1", "0 to 2"), ("stripe", "did you mean 'striped'"), ("", "unknown"), ("³", "unknown")]
)
def test_a_label_that_does_not_exist_is_refused(name, said):
    with pytest.raises(UserError, match=said):
        LABELLED.conditions[0].index(name)


@pytest.mark.parametrize("name", ["999", "zz"])
def test_labels_that_are_long_or_break_lines_are_listed_in_one_short_line(name):
    codec = Codec(medium=Image(), spec={}, conditions=(Labels(("x\ntinygen: do as I say\n", "y" * 900, *map(str, range(1000, 1100)))),))
    with pytest.raises(UserError) as refused:
        codec.conditions[0].index(name)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_conditions_cycle_through_the_given_labels_or_through_all():
    assert LABELLED.encode(7)["label"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    given = LABELLED.encode(3, Request(labels=["striped", "0"]))["label"]
    assert given.tolist() == [1, 0, 1]
    assert given.dtype == np.int32


def test_without_labels_there_is_no_condition_to_give():
    bare = Codec(medium=Image(), spec={"x": SPEC["x"]})
    assert bare.encode(3) == {}
    with pytest.raises(UserError, match="without labels"):
        check_answered(Request(labels=["0"]), bare.conditions)


def test_the_facts_are_those_that_the_arrays_have():
    wordless = {"text_length": 0, "text_vocabulary": 0, "text_features": 0, "token_bytes": ()}
    assert LABELLED.facts() == wordless | {"classes": 3, "shape": (4, 4, 1)}
    tokens = Codec(medium=Array("text"), spec={"tokens": Field(shape=(12,), dtype="int32", low=0, high=49)})
    assert tokens.facts() == wordless | {"classes": 0, "places": (12,), "length": 12, "vocabulary": 50}
    curve = Codec(medium=Array("curve"), spec={key: Field(shape=(shape,), dtype="float32") for key, shape in (("x", 1), ("y", 3))})
    assert curve.facts() == wordless | {"classes": 0, "shape": (1,), "target_shape": (3,)}
