"""A report's points and pictures: what is thinned, what is drawn where, what fits."""

import base64
import io
import itertools
import json

import numpy as np
import pytest
from PIL import Image

from tinygen.report import charts, page, pictures
from tinygen.report.run import Run, Series
from tinygen.workdir.files import File, folder


def run_of(name="a", settings=None, manifest=None, **columns):
    series = {each: Series(np.arange(1, len(values) + 1), np.asarray(values, float)) for each, values in columns.items()}
    return Run(folder(name), name, settings or {}, manifest or {}, series)


def titles(*runs):
    return [chart["title"] for chart in charts.compose(runs)]


def lines(title, *runs):
    return next(chart["lines"] for chart in charts.compose(runs) if chart["title"] == title)


# Points


def test_a_long_curve_keeps_its_ends_and_every_extreme():
    values = np.random.default_rng(0).normal(size=10_000)
    values[[4321, 777]] = 50, -50
    curve, average = charts.thin(Series(np.arange(10_000), values), 2000)
    assert len(curve.steps) <= 2000
    assert len(average.steps) <= 2000
    assert (np.diff(curve.steps) > 0).all()
    np.testing.assert_array_equal(curve.values, values[curve.steps])  # points of the curve, none made up
    assert {0, 777, 4321, 9999} <= set(curve.steps.tolist())
    assert np.mean(average.values) == pytest.approx(np.mean(values), abs=0.01)


def test_the_average_of_a_long_curve_is_not_pulled_by_its_extremes():
    values = np.random.default_rng(0).exponential(size=20_000)  # the middle of its extremes is far above its mean
    curve, average = charts.thin(Series(np.arange(20_000), values), 200)
    assert np.mean(average.values) == pytest.approx(1.0, abs=0.05)
    assert np.mean(curve.values) > 2


def test_a_short_curve_is_drawn_as_it_is():
    series = Series(np.arange(2000), np.zeros(2000))
    assert charts.thin(series) == (series, series)


def test_holes_stay_holes_and_values_beside_them_stay():
    values = np.ones(5000)
    values[1000:3000] = np.nan
    values[4000] = np.nan
    curve, average = charts.thin(Series(np.arange(5000), values), 500)
    for each in (curve, average):
        inside = (each.steps > 1020) & (each.steps < 2980)
        assert np.isnan(each.values[inside]).all()
        assert (each.values[~inside & (each.steps < 900)] == 1).all()
    assert lines("Loss", run_of(loss=[1.0, np.nan, 3.0]))[0]["y"] == [1.0, None, 3.0]


# Charts


def test_every_number_of_every_run_is_drawn_or_remarked_on():
    rng = np.random.default_rng(0)
    known = ["loss", "lr", "grad_norm", "steps_per_s", "data_wait", "memory_gib", *(f"raw_loss_t{i}" for i in range(4))]
    odd = ["codebook", "eval_codebook", "eval_ema_psnr", "eval_raw_loss_t1", "reward_t9", "eval_loss", "eval_ema_loss"]
    odd += ["eval_", "eval_ema_", "eval_ema_eval_x", "eval_eval_ema_y", "_t1", "loss_t0", "eval_loss_t0"]
    runs = [run_of("a", **{name: rng.normal(size=5) for name in known + odd}), run_of("b", new=rng.normal(size=5), still=np.ones(5))]
    for some in itertools.chain([[each] for each in runs], [runs]):
        drawn = [line["y"] for chart in charts.compose(some) for line in chart["lines"]]
        for run in some:
            for name, series in run.series.items():
                wanted = [float(f"{value:.6g}") for value in series.values]
                assert wanted in drawn or any(remark.startswith(f"{name} ") for remark in charts.remarks(some)), name


def test_the_loss_before_weighting_is_drawn_only_where_it_differs():
    assert "Loss before weighting" not in titles(run_of(loss=[3, 2], raw_loss=[3, 2]))
    assert charts.remarks([run_of(loss=[3, 2], raw_loss=[3, 2])]) == ["raw_loss equals loss"]
    assert "Loss before weighting" in titles(run_of(loss=[3, 2], raw_loss=[3, 1]))
    assert "Loss before weighting" in titles(run_of(loss=[3, 2], raw_loss=[3, 2]), run_of("b", loss=[3, 2], raw_loss=[3, 1]))
    assert "Loss before weighting" in titles(run_of(raw_loss=[3, 2]))


def test_training_and_held_out_loss_stand_in_one_chart():
    drawn = lines("Loss: training and held out", run_of(loss=[3, 2], eval_loss=[5, 4], eval_ema_loss=[7, 6]))
    assert [(line["label"], line["y"]) for line in drawn] == [
        ("training, smoothed", [3, 2]),
        ("held out, averaged weights", [7, 6]),
        ("held out, raw weights", [5, 4]),
    ]


def test_intervals_of_t_stand_in_one_chart_for_one_run_and_in_a_chart_each_for_several():
    run = run_of(raw_loss_t0=[1, 2], raw_loss_t1=[3, 4])
    assert [line["label"] for line in lines("raw_loss, training, smoothed", run)] == ["t 0 – 0.5", "t 0.5 – 1"]
    assert titles(run, run) == ["raw_loss, t 0 – 0.5", "raw_loss, t 0.5 – 1"]


def test_intervals_keep_their_place_in_time_whichever_was_logged_first():
    drawn = lines("raw_loss, training, smoothed", run_of(raw_loss_t3=[1, 2], raw_loss_t0=[3, 4]))
    assert [(line["label"], line["y"]) for line in drawn] == [("t 0 – 0.25", [3, 4]), ("t 0.75 – 1", [1, 2])]


def test_examples_and_arithmetic_a_second_come_from_batch_size_and_flops():
    run = run_of(settings={"batch_size": 32}, manifest={"flops_per_step": 1e9}, steps_per_s=[2.0, 4.0])
    assert lines("Examples per second", run)[0]["y"] == [64, 128]
    assert lines("Arithmetic, FLOP/s", run)[0]["y"] == [2e9, 4e9]
    assert titles(run_of(steps_per_s=[2.0, 4.0])) == ["Steps per second"]


def test_a_run_without_numbers_has_no_charts():
    assert charts.compose([run_of()]) == []


# Pictures


@pytest.fixture
def files(tmp_path):
    """files(n): n pictures of 64 x 64 noise, the last one flat."""

    def make(count):
        for index in range(count):
            pixels = np.random.default_rng(index).integers(0, 256, (64, 64, 3)).astype(np.uint8)
            Image.fromarray(pixels if index < count - 1 else pixels[:1, :1].repeat(64, 0).repeat(64, 1)).save(tmp_path / f"{index}.png")
        place = folder(tmp_path)
        return [File(place, f"{index}.png") for index in range(count)]

    return make


def decoded(picture):
    with Image.open(io.BytesIO(base64.b64decode(picture.data.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))


def test_pictures_that_fit_are_held_without_loss_and_no_larger_than_their_files(files):
    paths = files(3)
    album = pictures.pack([paths])
    assert album.note == ""
    for path in paths:
        np.testing.assert_array_equal(decoded(album.pictures[path]), np.asarray(Image.open(path.path)))
        assert len(album.pictures[path].data) <= len("data:image/webp;base64,") + 4 * (path.path.stat().length + 2) // 3
    assert album.characters == sum(len(each.data) for each in album.pictures.values())


def test_pictures_over_the_budget_become_lossy_and_then_fewer_and_the_page_says_so(files):
    paths = files(9)
    whole = pictures.pack([paths]).characters
    lossy = pictures.pack([paths], int(whole * 0.8))
    assert list(lossy.pictures) == paths
    assert lossy.characters <= whole * 0.8
    assert "lossy WebP (quality 90)" in lossy.note
    fewer = pictures.pack([paths[:4], paths[4:]], int(whole * 0.2))
    assert fewer.characters <= whole * 0.2
    assert {paths[0], paths[3], paths[4], paths[8]} <= fewer.pictures.keys() < {*paths}
    assert f"only {len(fewer.pictures)} of 9 fit" in fewer.note
    least = pictures.pack([paths[:2]], int(whole * 0.06))  # less than the first and the last of a group take
    assert least.characters <= whole * 0.06
    assert f"only {len(least.pictures)} of 2 fit" in least.note
    assert len(least.pictures) < 2


def test_of_more_pixels_than_a_reader_waits_for_the_first_and_last_pictures_are_decoded(files, monkeypatch):
    paths = files(9)
    monkeypatch.setattr(pictures, "ALL_PIXELS", 5 * 64 * 64)
    album = pictures.pack([paths[:4], paths[4:]])
    assert {*album.pictures} == {paths[0], paths[3], paths[4], paths[8]}
    assert album.note == "4 of 9 pictures are shown: all together have 36,864 pixels. The others are in the folder."


def test_what_is_no_picture_is_named(tmp_path):
    path = File(folder(tmp_path), "x.png")
    path.path.write_text("no picture")
    album = pictures.pack([[path]])
    assert album.pictures == {}
    assert "not a picture" in album.problems[path]


# The page


def test_json_in_the_page_cannot_end_its_element_and_holds_no_number_that_json_lacks():
    value = {"a": "</script><!--", "b": [1, None]}
    assert "<" not in page.as_script(value)
    assert json.loads(page.as_script(value)) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        page.as_script(float("nan"))


def test_a_run_shows_its_mesh_and_what_a_device_holds_where_the_manifest_tells():
    told = dict(
        page._facts(run_of(manifest={"mesh": {"data": 1, "fsdp": 8}, "memory_per_device": {"params": 3 * 2**20, "buffers": 0}}), 0.0)
    )
    assert (told["mesh"], told["memory per device"]) == ("data 1 × fsdp 8", "parameters 3 MiB")
    older = dict(page._facts(run_of(), 0.0))
    assert (older["mesh"], older["memory per device"]) == ("", "")
