"""Times from noise to data."""

from statistics import NormalDist

import numpy as np
import pytest
from gaussian_flow import flow

from tinygen.errors import UserError
from tinygen.samplers.time_grids import GRIDS, Shape, times

STEPS = [1, 2, 3, 7, 10, 25, 49, 50, 1000]


@pytest.mark.parametrize("shape", [Shape(0.0, 1.0, 3.0), Shape(-0.7, 0.4, 0.3), Shape(0.3, 2.0, 7.3)])
@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_falls_from_exactly_one_to_exactly_zero(name, shape):
    for steps in STEPS:
        grid = times(name, steps, shape)
        assert len(grid) == steps + 1
        assert (grid[0], grid[-1]) == (1.0, 0.0)
        assert (np.diff(np.float32(grid)) < 0).all()


def test_the_uniform_grid_is_even():
    np.testing.assert_allclose(np.diff(times("uniform", 7, Shape(0.0, 1.0, 3.0))), -1 / 7, rtol=1e-12)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (-0.8, 0.6)])
def test_between_two_logit_normal_times_lies_an_equal_share_of_training(mean, std):
    inner = times("logit_normal", 10, Shape(mean, std, 3.0))[1:-1]
    shares = [NormalDist(mean, std).cdf(each) for each in np.log(inner / (1 - inner))]
    np.testing.assert_allclose(shares, np.arange(9, 0, -1) / 10, rtol=1e-9)


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
def test_shifting_multiplies_noise_over_data(shift):
    """t/(1 - t), the ratio of noise to data, is what Esser et al. shift from one resolution to another."""
    even, moved = (times(name, 8, Shape(0.0, 1.0, shift))[1:-1] for name in ("uniform", "shifted"))
    np.testing.assert_allclose(moved / (1 - moved), shift * even / (1 - even), rtol=1e-12)


def test_flow_matching_steps_at_the_times_of_its_grid_as_it_was_trained():
    objective = flow(sampler="euler", nfe=4, time_grid="logit_normal", t_mean=-0.5, t_std=0.7)
    np.testing.assert_array_equal(objective.grid(conditional=False), times("logit_normal", 4, Shape(-0.5, 0.7, 3.0)))
    objective = flow(sampler="euler", nfe=4, time_grid="shifted", shift=5.0)
    np.testing.assert_array_equal(objective.grid(conditional=False), times("shifted", 4, Shape(0.0, 1.0, 5.0)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(time_grid="shfted"), "unknown time_grid 'shfted': did you mean 'shifted'"),
        (dict(shift=0.0), "shift=0.0 must be positive"),
        (dict(shift=float("inf")), "shift=inf must be positive"),
        (dict(time_grid="logit_normal", t_std=30.0), "time_grid=logit_normal with nfe=50 has times that are equal in float32"),
    ],
)
def test_grids_that_make_no_sense_are_refused_in_one_line(changes, said):
    with pytest.raises(UserError, match=said) as caught:
        flow(**changes)
    assert "\n" not in str(caught.value)
