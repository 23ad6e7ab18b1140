import numpy as np
import pytest
import score_sanity

from tinygen.errors import UserError


def coarse(images):
    """Means over 2x2 pixels: features good enough to see what the script does to images."""
    return images[..., 0].reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / np.float32(255)


def test_every_kind_of_damage_begins_at_real_against_real_and_ends_far_above():
    kinds = score_sanity.measure("digits8", 400, coarse)
    assert set(kinds) == {"blur", "noise", "missing classes", "mode collapse"}
    for row in kinds.values():
        assert len(row) == 4
        first, *_, last = row.values()
        assert first == next(iter(kinds["blur"].values())) > 0
        assert last > 3 * first


def test_more_images_than_there_are_thrice_are_refused():
    with pytest.raises(UserError, match=r"digits8 has .* but --num=900 needs three times as many"):
        score_sanity.measure("digits8", 900, coarse)


def test_a_table_says_what_does_not_rise():
    said = score_sanity.table("FD", {"blur": {"0": 1.0, "1 px": 2.0}, "noise": {"0": 1.0, "8/255": 1.0}})
    assert [line.split("  ")[-1] for line in said.splitlines()] == ["FD", "rises", "DOES NOT RISE"]


def test_the_plot_has_a_panel_a_kind(tmp_path):
    score_sanity.draw(tmp_path / "plot.png", "FD", {"digits": {"blur": {"0": 1.0, "1 px": 2.0}, "noise": {"0": 1.0, "8/255": 4.0}}})
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_too_few_images_for_a_covariance_are_a_line(tmp_path, capsys):
    assert score_sanity.main(["--num=100", f"--out={tmp_path}"]) == 2
    assert "score_sanity: --num=100: a covariance of 1280 features needs 1281 images" in capsys.readouterr().err
