import json
import sys

import numpy as np
import pytest
import score_digits
from PIL import Image

from tinygen.data import builtin

pytest.importorskip("sklearn")

TRAIN = score_digits.train_judge


@pytest.fixture(scope="module")
def digits8():
    """Pixels as `tinygen sample` writes them, uint8 [N, 8, 8], and labels: (train, held out)."""
    arrays, meta = builtin.load("digits8")
    x, split = np.round(arrays["x"][..., 0] * (255 / 16)).astype(np.uint8), -meta["validation"]
    return (x[:split], arrays["label"][:split]), (x[split:], arrays["label"][split:])


@pytest.fixture(scope="module")
def judging():
    """The script, with a classifier of digits8 that is trained only once."""
    real, labels, held_out = score_digits._real("digits8")
    judge = TRAIN(real[:-held_out], labels[:-held_out])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_digits, "train_judge", lambda *_: judge)
        yield score_digits


@pytest.fixture
def judged(judging, tmp_path):
    """Writes samples and scores them: (exit status, numbers)."""

    def run(x, labels, **provenance):
        write(tmp_path, x, labels, **provenance)
        status = judging.main([f"--samples={tmp_path}", "--data=digits8", f"--json={tmp_path / 'score.json'}"])
        return status, json.loads((tmp_path / "score.json").read_text())

    return run


def write(folder, x, labels, **provenance):
    rows = [{"file": f"{i:05d}.png", "label": int(label)} for i, label in enumerate(labels)]
    for row, image in zip(rows, x, strict=True):
        Image.fromarray(image).save(folder / row["file"])
    (folder / "samples.json").write_text(json.dumps({"samples": rows, **provenance}))


def test_real_held_out_digits_pass(judged, digits8, capsys):
    status, result = judged(*digits8[1])
    assert status == 0
    assert result["passed"] == {"accuracy": True, "spread": True, "distance": True}
    assert result["accuracy"] == result["held_out_accuracy"] >= 0.97
    # 18 of a class: the mean over ten classes is good to a few percent
    assert result["spread"] == pytest.approx(1, abs=0.05)
    # only the rounding of the PNGs parts them
    assert result["distance"] == pytest.approx(1, abs=0.01)
    assert capsys.readouterr().out.count("PASS") == 3


def test_copies_of_training_images_fail_on_distance_alone(judged, digits8):
    x, labels = digits8[0]
    status, result = judged(x[:400], labels[:400])
    assert status == 1
    assert result["passed"] == {"accuracy": True, "spread": True, "distance": False}
    assert result["distance"] < 0.02


def test_one_image_a_class_over_and_over_fails_on_spread(judged, digits8):
    x, labels = digits8[1]
    firsts = np.repeat([np.flatnonzero(labels == c)[0] for c in range(10)], 5)
    status, result = judged(x[firsts], labels[firsts])
    assert status == 1
    assert not result["passed"]["spread"]
    assert result["spread"] == pytest.approx(0, abs=1e-6)


def test_digits_under_the_wrong_label_fail_on_accuracy(judged, digits8, capsys):
    x, labels = digits8[1]
    status, result = judged(x, (labels + 1) % 10)
    assert status == 1
    assert not result["passed"]["accuracy"]
    assert result["accuracy"] < 0.1
    assert "FAIL  accuracy" in capsys.readouterr().out


def test_accuracy_is_told_class_by_class(judged, digits8):
    x, labels = digits8[1]
    asked = labels.copy()
    asked[labels == 4] = 7
    result = judged(np.concatenate([x, x[labels == 4]]), np.concatenate([asked, labels[labels == 4]]))[1]
    sevens = np.sum(labels == 7) / np.sum(asked == 7)
    assert result["class_accuracy"][7] == pytest.approx(sevens, abs=0.06)
    assert result["class_accuracy"][4] > 0.9
    assert result["samples"][7] == np.sum(asked == 7)


@pytest.mark.parametrize("num", [2, 5, 40])
def test_few_samples_of_the_same_kind_do_not_look_less_varied(judging, num):
    x = np.random.default_rng(0).normal(size=(1000, 28, 28))
    assert judging.spread_ratio(x[:num], x[100:]) == pytest.approx(1, abs=0.02)


def test_spread_sees_samples_drawn_together(judging):
    x = np.random.default_rng(0).normal(size=(200, 28, 28))
    assert judging.spread_ratio(0.7 * x[:100], x[100:]) == pytest.approx(0.7, abs=0.01)


def test_nearest_distance_is_the_median_over_images(judging):
    others = np.zeros((2, 4, 4))
    others[1] = 10
    images = np.stack([np.full((4, 4), value) for value in (0.0, 1.0, 9.5)])
    assert judging.nearest_distance(images, others) == pytest.approx(2.0)


@pytest.mark.parametrize("where", ["once", "per sample"])
def test_provenance_is_printed(judging, judged, digits8, tmp_path, capsys, where):
    known = {"guidance": 2.5, "nfe": 50, "seed": 17, "checkpoint_step": 4000}
    if where == "once":
        judged(*digits8[1], **known)
    else:
        write(tmp_path, *digits8[1])
        rows = json.loads((tmp_path / "samples.json").read_text())["samples"]
        (tmp_path / "samples.json").write_text(json.dumps({"samples": [{**row, **known} for row in rows]}))
        judging.main([f"--samples={tmp_path}", "--data=digits8"])
    out = capsys.readouterr().out
    assert all(f"{key}: {value}\n" in out for key, value in known.items())


def mistake(judging, capsys, *args):
    assert judging.main(list(args)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_no_such_folder_is_one_line(judging, tmp_path, capsys):
    assert "no such folder" in mistake(judging, capsys, f"--samples={tmp_path / 'nowhere'}")


def test_a_folder_without_samples_json_is_one_line(judging, tmp_path, capsys):
    assert "no samples.json" in mistake(judging, capsys, f"--samples={tmp_path}")


@pytest.mark.parametrize("text", ["", "[]", '{"images": []}', '{"samples": [{"label": 3}]}', '{"samples": ["00000.png"]}'])
def test_a_broken_samples_json_is_one_line(judging, tmp_path, capsys, text):
    (tmp_path / "samples.json").write_text(text)
    assert "samples" in mistake(judging, capsys, f"--samples={tmp_path}")


def test_images_of_another_size_are_one_line_with_both_sizes(judging, digits8, tmp_path, capsys):
    write(tmp_path, *digits8[1])
    message = mistake(judging, capsys, f"--samples={tmp_path}", "--data=digits")
    assert "8x8" in message
    assert "28x28" in message


def test_a_missing_image_is_one_line(judging, digits8, tmp_path, capsys):
    write(tmp_path, *digits8[1])
    (tmp_path / "00003.png").unlink()
    assert "00003.png" in mistake(judging, capsys, f"--samples={tmp_path}", "--data=digits8")


@pytest.mark.parametrize("label", [10, -1, None, "3", 2.5, True])
def test_a_label_that_is_no_digit_is_one_line(judging, tmp_path, capsys, label):
    (tmp_path / "samples.json").write_text(json.dumps({"samples": [{"file": "0.png", "label": label}]}))
    assert repr(label) in mistake(judging, capsys, f"--samples={tmp_path}")


def test_classes_without_samples_are_named(judging, digits8, tmp_path, capsys):
    x, labels = digits8[1]
    kept = (labels != 3) & (labels != 8)
    write(tmp_path, x[kept], labels[kept])
    assert "3, 8" in mistake(judging, capsys, f"--samples={tmp_path}", "--data=digits8")


def test_without_scikit_learn_it_says_how_to_get_it(tmp_path, capsys, monkeypatch, digits8):
    write(tmp_path, *digits8[1])
    monkeypatch.setattr(score_digits, "train_judge", TRAIN)
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)
    assert "pip install scikit-learn" in mistake(score_digits, capsys, f"--samples={tmp_path}", "--data=digits8")
