"""Sets of text as sources: what is held out, how it is read, what is said of it, and that a run keeps its vocabulary."""

import bz2
import json

import numpy as np
import pytest
from etils import epath

from tinygen import build
from tinygen import config as config_lib
from tinygen.checkpoints import store
from tinygen.checkpoints.store import Saved
from tinygen.data import builtin
from tinygen.data.codec import Codec
from tinygen.data.source import check_batch
from tinygen.data.text.sources import spread
from tinygen.errors import UserError
from tinygen.training import resume, setup, warm_start
from tinygen.workdir import files

STORIES = [f"Story {index}: the cat number {index} sat on the mat, it's {index * 7} years old. " * 3 for index in range(40)]
MARKER = "<|endoftext|>"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def stories(tmp_path):
    path = tmp_path / "stories.txt"
    path.write_text(f"\n{MARKER}\n".join(STORIES))
    return path


def config(path="", name="text", **keys):
    return config_lib.base(data=dict(name=name, **({"path": str(path)} if path else {}), **({"length": 32} | keys)))


def source(path="", known=None, **keys):
    return build.data_source(config(path, **keys), known)


def told(made, split):
    """The documents of a split, read back from its windows."""
    batch = made.splits[split].take(np.arange(len(made.splits[split])))
    vocabulary, there = made.codec.medium.vocabulary, batch["segment"] > 0
    tokens = batch["target"][there]
    return [vocabulary.decode(part) for part in np.split(tokens, np.flatnonzero(tokens == vocabulary.end) + 1)][:-1]


KINDS = [dict(tokenizer="bytes"), dict(tokenizer="characters"), dict(tokenizer="bpe", vocabulary=300)]


@pytest.mark.parametrize("keys", KINDS, ids=lambda keys: keys["tokenizer"])
@pytest.mark.parametrize("pack", [True, False])
def test_documents_come_back_whole_each_in_one_split(keys, pack, stories):
    made = source(stories, pack=pack, **keys)
    train_on, held_out = told(made, "train"), told(made, "validation")
    assert held_out == [STORIES[index].strip() for index in (10, 30)]
    assert train_on == [story.strip() for index, story in enumerate(STORIES) if index not in (10, 30)]
    check_batch(next(made.batches("train", 4, seed=0)), made.codec)


@pytest.mark.parametrize(("total", "share", "held_out"), [(2, 0.0, [1]), (10, 0.0, [5]), (10, 0.3, [1, 5, 8]), (100, 0.02, [25, 75])])
def test_what_is_held_out_lies_all_over_and_is_one_at_least(total, share, held_out):
    assert spread(total, share).tolist() == held_out


def test_a_share_that_leaves_nothing_is_refused(stories):
    with pytest.raises(UserError, match=r"config.data.validation=0.99 of 40 documents are 40, which leaves none"):
        source(stories, validation=0.99)
    for share in (-0.1, 1.0):
        with pytest.raises(UserError, match=r"config.data.validation=.* must lie in \[0, 1\)"):
            source(stories, validation=share)


def test_of_a_lone_document_the_last_lines_are_held_out_and_it_is_said(tmp_path):
    lines = [f"line {index} of a long poem" for index in range(200)]
    (tmp_path / "poem.txt").write_text("\n".join(lines))
    made = source(tmp_path / "poem.txt", validation=0.1)
    [first], [last] = told(made, "train"), told(made, "validation")
    assert (first + "\n" + last).split("\n") == lines
    assert len(last) / len(first) == pytest.approx(0.1 / 0.9, rel=0.1)
    assert "the only document's last 10." in made.about()[0]


def test_batches_are_a_function_of_seed_and_number_and_other_epochs_have_other_orders(stories):
    made = source(stories)
    first = [batch["tokens"] for _, batch in zip(range(6), made.batches("train", 8, seed=0), strict=False)]
    later = next(made.batches("train", 8, seed=0, start=5))["tokens"]
    np.testing.assert_array_equal(first[5], later)
    assert not np.array_equal(first[0], next(made.batches("train", 8, seed=1))["tokens"])


def test_held_out_windows_are_all_of_it_and_the_last_is_padded(stories):
    made = source(stories)
    batches = list(made.epoch("validation", 4))
    counted = sum(((batch["segment"] > 0) * batch["weight"][:, None]).sum() for batch in batches)
    lengths = made.codec.medium.vocabulary.byte_lengths
    spelled = sum((lengths[batch["target"]] * (batch["segment"] > 0) * batch["weight"][:, None]).sum() for batch in batches)
    held_out = [STORIES[index].strip() for index in (10, 30)]
    assert spelled == sum(map(len, held_out))
    assert counted == spelled + 2  # and an end each


def test_what_is_found_is_said(stories):
    said = source(stories, tokenizer="bpe", vocabulary=300, pack=False).about()
    assert said[0].endswith("40 documents, 2 of them held out, evenly spread")
    assert said[1].startswith("a vocabulary of 300 tokens (bpe), ")
    assert "bytes per token" in said[1]
    assert said[-1].startswith("windows of 32 tokens: ")
    assert "are padding" in said[-1]


def test_characters_that_training_has_not_seen_are_written_byte_by_byte_and_counted(tmp_path):
    for name, text in {"1": "東 a b", "2": "東京 c", "3": "東 d e"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    made = source(tmp_path, tokenizer="characters")
    assert made.codec.medium.vocabulary.characters == "東"
    assert told(made, "validation") == ["東京 c"]
    assert "38 % of the bytes of validation belong to characters without a token, and are spelled byte by byte" in made.about()


def test_the_fingerprint_is_that_of_content_vocabulary_and_splits(stories, tmp_path):
    moved = tmp_path / "moved.txt"
    moved.write_bytes(stories.read_bytes())
    assert source(stories).fingerprint == source(moved).fingerprint
    moved.unlink()
    assert source(stories).fingerprint == source(tmp_path, pattern="*.md, stories*").fingerprint
    others = [
        dict(tokenizer="bpe", vocabulary=300),
        dict(tokenizer="bpe", vocabulary=301),
        dict(validation=0.1),
        dict(length=31),
        dict(pack=False),
    ]
    moved.write_text(stories.read_text() + "!")
    marks = [source(stories).fingerprint, source(moved).fingerprint, *(source(stories, **keys).fingerprint for keys in others)]
    assert len(set(marks)) == len(marks)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (dict(tokenizer="words"), r"unknown config.data.tokenizer 'words'"),
        (dict(tokenizer="bpe", vocabulary=256), r"config.data.vocabulary=256 must lie in 257 to 131,329"),
        (dict(tokenizer="bpe", vocabulary=10**6), r"config.data.vocabulary=1000000 must lie in 257"),
        (dict(length=0), r"config.data.length=0 must lie in 1"),
        (dict(tokenizer="gpt2", files="nowhere"), r"nowhere/vocab.bpe cannot be read"),
    ],
    ids=str,
)
def test_a_wrong_key_is_refused_by_name(keys, said, stories):
    with pytest.raises(UserError, match=said):
        source(stories, **keys)


def test_a_bpe_of_no_more_than_bytes_has_no_merges(stories):
    assert source(stories, tokenizer="bpe", vocabulary=257).codec.medium.vocabulary.size == 257


def test_a_document_longer_than_all_windows_of_a_batch_is_read_in_many(tmp_path):
    (tmp_path / "long.txt").write_text("word " * 5000 + MARKER + "short")
    assert told(source(tmp_path / "long.txt"), "train") == [("word " * 5000).strip()]


def test_what_a_run_has_learnt_from_is_read_with_its_vocabulary_whatever_the_text_is_by_now(stories, tmp_path):
    known = source(stories, tokenizer="bpe", vocabulary=300).codec
    learnt = known.medium.vocabulary
    other = tmp_path / "other.txt"
    other.write_text(f"{MARKER}".join(["zebras zigzag, zebras zoom, they do"] * 9))
    made = source(other, known, tokenizer="bpe", vocabulary=280)
    assert made.codec.medium.vocabulary == learnt
    assert any("that of the trained weights" in line for line in made.about())
    assert source(other, tokenizer="bpe", vocabulary=280).codec.medium.vocabulary != learnt
    assert source(other, known).codec.medium.vocabulary.kind == "bytes"


def test_a_resumed_run_and_a_later_stage_find_the_stored_vocabulary(stories, tmp_path, monkeypatch):
    codec = source(stories, tokenizer="bpe", vocabulary=300).codec
    mine = config(stories, tokenizer="bpe", vocabulary=280)
    assert setup.codec_so_far(mine, epath.Path(tmp_path)) is None
    stage = config_lib.change(mine, dict(init=dict(ckpt="earlier")))
    monkeypatch.setattr(store, "find", lambda ckpt, option: Saved(epath.Path(ckpt), 9, mine, codec, {}))
    assert setup.codec_so_far(stage, epath.Path(tmp_path)) == codec
    monkeypatch.setattr(store, "saved_steps", lambda folder: [3])
    monkeypatch.setattr(store, "item", lambda folder, step, name: json.loads(json.dumps(codec.to_json())))
    assert setup.codec_so_far(mine, epath.Path(tmp_path)) == codec


def test_another_vocabulary_than_the_earlier_stages_is_refused_with_what_differs(stories, tmp_path, caplog):
    stage = config_lib.change(config(stories), dict(init=dict(ckpt="earlier")))

    def refused(old, new):
        with pytest.raises(UserError) as error:
            warm_start.check_data(stage, new, Saved(epath.Path("earlier"), 9, stage, old, {}))
        return str(error.value)

    bytewise, small = (source(stories, **keys).codec for keys in (dict(tokenizer="bytes"), dict(tokenizer="bpe", vocabulary=300)))
    earlier = Saved(epath.Path("earlier"), 9, stage, Codec.from_json(small.to_json()), {})
    warm_start.check_data(stage, small, earlier)
    longer = source(stories, tokenizer="bpe", vocabulary=300, length=24).codec
    learned = config_lib.change(stage, dict(model=dict(name="minigpt", positions="learned")))
    rotary = config_lib.change(stage, dict(model=dict(name="minigpt", positions="rope")))
    warm_start.check_data(rotary, longer, earlier)  # which no array depends on
    with pytest.raises(UserError, match=r"shape of tokens: \(\d+,\) -> \(24,\)"):
        warm_start.check_data(learned, longer, earlier)
    partial = config_lib.change(stage, dict(init=dict(partial=True)))
    with caplog.at_level("WARNING"):
        warm_start.check_data(partial, bytewise, earlier)
    assert "vocabulary: 300 tokens (bpe) -> 257 tokens (bytes). Arrays that fit are loaded" in caplog.text
    assert "vocabulary: 257 tokens (bytes) -> 300 tokens (bpe)" in refused(bytewise, small)
    zebras = tmp_path / "zebras.txt"
    zebras.write_text(f"{MARKER}".join(f"zebra zigzags zoom {index}" * 9 for index in range(99)))
    assert "vocabulary: 300 tokens (bpe), token 256: " in refused(small, source(zebras, tokenizer="bpe", vocabulary=300).codec)


@pytest.mark.parametrize("keys", [dict(tokenizer="bpe"), dict(vocabulary=512), dict(length=64), dict(pack=False)], ids=str)
def test_how_text_is_read_may_not_change_in_a_runs_workdir(keys, tmp_path):
    workdir = epath.Path(tmp_path)
    resume.claim(workdir, config("a.txt"))
    (workdir / "metrics.jsonl").write_text('{"step": 1}\n')
    resume.claim(workdir, config("b.txt", files="elsewhere", pattern="*.md"))
    [(key, value)] = keys.items()
    with pytest.raises(UserError, match=rf"data.{key}: .* -> {value}"):
        resume.claim(workdir, config("a.txt", **keys))


def test_windows_from_all_over_are_shown_as_the_model_sees_them(stories, tmp_path):
    setup.show_data(files.folder(tmp_path), source(stories, length=300), 3)
    shown = (tmp_path / "data.txt").read_text()
    assert shown.startswith("[0]\n⟨end⟩Story 0: the cat number 0 sat")
    assert "⟨end⟩Story 1" in shown
    assert [row["index"] for row in json.loads((tmp_path / "data.json").read_text())] == [0, 11, 23]
    assert not (tmp_path / "data.png").exists()


@pytest.fixture(scope="module")
def plays():
    return builtin.plays()


def test_plays_are_whole_and_a_tenth_of_two_kinds_is_held_out(plays):
    texts, meta = plays
    assert meta["validation"] == ["The Comedy of Errors", "Macbeth"]
    share = sum(len(texts[title]) for title in meta["validation"]) / sum(map(len, texts.values()))
    assert 0.05 < share < 0.1
    for title, text in texts.items():
        assert text.startswith(f"{title}\n\n")
        assert text.isascii()
        assert all(f"\nACT {number}\n" in text for number in ("I", "II", "III", "IV", "V")), title
        assert not any(sign in text for sign in "*_#\\")


def test_plays_read_as_plays_do(plays):
    text = plays[0]["Macbeth"]
    assert "\n\nMACBETH:\nSo foul and fair a day I have not seen.\n\nBANQUO:\nHow far is't call'd to Forres?" in text
    assert "\n\n[Drum within]\n\nThird Witch:\nA drum, a drum!\n" in text


def test_the_plays_are_a_data_set():
    made = source(name="shakespeare", length=256)
    held_out = b"".join(each.encode() for each in told(made, "validation"))
    assert told(made, "validation")[1].endswith("Whom we invite to see us crown'd at Scone.\n\n[Flourish. Exeunt]\n")
    assert 8 * len(bz2.compress(held_out)) / len(held_out) == pytest.approx(2.49, abs=0.01)  # bits a byte, which a model should beat
    assert made.about()[0] == "14 plays to train on; held out are The Comedy of Errors and Macbeth"
