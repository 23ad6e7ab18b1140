"""Scores over a grid of sampler settings."""

import numpy as np
import pytest
from etils import epath
from PIL import Image

from tinygen.cli import flags as options
from tinygen.errors import UserError
from tinygen.evaluation.grid import TYPES, combinations, parse, plot, table
from tinygen.media import curve

POINTS = {"guidance": [1.0, 1.5, 2.0], "nfe": [4, 25]}


def test_words_become_settings_of_their_types():
    assert parse(["guidance=1,1.5,2", "nfe=4,25", "sampler=euler,heun"]) == {**POINTS, "sampler": ["euler", "heun"]}
    assert parse(["time_grid=uniform,shifted", "shift=2"]) == {"time_grid": ["uniform", "shifted"], "shift": [2.0]}
    assert parse([]) == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("guidance", "write SETTING=VALUE,VALUE with nfe, guidance, sampler"),
        ("guidance=", "write SETTING"),
        ("=1", "write SETTING"),
        ("min_p=1", "write SETTING"),
        ("nfe=4,x", "nfe takes whole numbers"),
        ("nfe=4.5", "nfe takes whole numbers"),
        ("nfe=4,,8", "nfe takes whole numbers"),
        ("guidance=a", "guidance takes numbers"),
    ],
)
def test_other_words_are_refused_with_what_is_taken(word, message):
    with pytest.raises(UserError, match=rf"^--grid {word}: {message}"):
        parse([word])


def test_a_setting_given_twice_is_refused():
    with pytest.raises(UserError, match="--grid nfe=8: nfe is given twice"):
        parse(["nfe=4", "nfe=8"])


def test_more_combinations_than_anyone_means_are_refused():
    many = ",".join(map(str, range(1, 12)))
    with pytest.raises(UserError, match="--grid: 110 combinations, at most 100"):
        parse([f"nfe={many}", "guidance=1,2,3,4,5,6,7,8,9,10"])


def test_every_combination_comes_once_the_last_setting_fastest():
    assert [tuple(each.values()) for each in combinations(POINTS)] == [(1.0, 4), (1.0, 25), (1.5, 4), (1.5, 25), (2.0, 4), (2.0, 25)]
    assert list(combinations({})) == [{}]


def test_the_table_has_a_line_a_combination_in_columns():
    lines = table(POINTS, [6.0, 5.0, 4.0, 3.0, 2.5, 12.25], "fid").splitlines()
    assert [line.split() for line in lines] == [
        ["guidance", "nfe", "fid"], ["1.0", "4", "6"], ["1.0", "25", "5"], ["1.5", "4", "4"], ["1.5", "25", "3"], ["2.0", "4", "2.5"],
        ["2.0", "25", "12.25"],
    ]  # fmt: skip
    assert len(set(map(len, lines))) == 1


def test_the_plot_has_a_curve_a_value_of_the_other_setting(tmp_path, monkeypatch):
    drawn, draw = [], curve.plot

    def noted(*arguments, **keywords):
        drawn.append((*arguments, keywords))
        return draw(*arguments, **keywords)

    monkeypatch.setattr(curve, "plot", noted)
    points = {"guidance": [2.0, 1.0, 1.5], "nfe": [4, 25]}  # in whatever order they were given
    assert plot(points, [6.0, 5.0, 4.0, 3.0, 2.0, 1.0], "fid", epath.Path(tmp_path / "grid.png"))
    ((curves, names, across, name, keywords),) = drawn
    assert keywords == {"log_x": False}
    np.testing.assert_array_equal(curves, [[1.0, 4.0, 3.0], [1.5, 2.0, 1.0], [2.0, 6.0, 5.0]])
    assert (list(names), across, name) == (["nfe 4", "nfe 25"], "guidance", "fid")
    assert np.asarray(Image.open(tmp_path / "grid.png")).std() > 0


def test_one_setting_alone_has_one_curve(tmp_path):
    assert plot({"nfe": [1, 4, 25]}, [9.0, 5.0, 4.0], "fid", epath.Path(tmp_path / "grid.png"))
    assert (tmp_path / "grid.png").exists()


def test_an_axis_from_little_to_much_is_logarithmic(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(curve, "plot", lambda *arguments, log_x: [asked.append(log_x), np.zeros((9, 9, 3), np.uint8)][1])
    for points in ({"nfe": [50, 1, 4]}, {"nfe": [4, 25]}, {"guidance": [0.0, 1.0, 9.0]}):
        assert plot(points, [1.0, 2.0, 3.0][: len(*points.values())], "fid", epath.Path(tmp_path / "grid.png"))
    assert asked == [True, False, False]


@pytest.mark.parametrize("points", [{"sampler": ["euler", "heun"]}, {"nfe": [4]}])
def test_nothing_is_drawn_where_there_is_no_axis(tmp_path, points):
    assert not plot(points, [1.0, 2.0], "fid", epath.Path(tmp_path / "grid.png"))
    assert not (tmp_path / "grid.png").exists()


def test_the_command_line_takes_all_words_after_the_flag(called):
    arguments = called("eval-fid", "--ckpt=runs/a", "--grid", "guidance=1,1.5,2", "nfe=4,25", "--num=100")[2]
    assert arguments["points"] == POINTS
    assert arguments["num"] == 100


def test_every_setting_of_sampling_that_a_score_may_have_can_vary():
    assert set(TYPES) == {*options.DENOISING, *options.TOKENS}
