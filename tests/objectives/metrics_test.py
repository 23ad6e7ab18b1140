import math

import numpy as np

from tinygen.objectives.base import Objective, finalise


class ByHalves(Objective):
    """An objective with a metric that is no mean of anything."""

    def derived(self, means):
        return {"twice": 2 * means["loss"]} if "loss" in means else {}


def test_a_derived_metric_is_made_of_the_mean_and_not_averaged_itself():
    assert finalise({"loss": (6.0, 4.0), "lr": 0.5}, ByHalves()) == {"loss": 1.5, "lr": 0.5, "twice": 3.0}


def test_what_has_no_weight_is_left_out_and_nothing_is_derived_of_it():
    assert finalise({"loss": (0.0, 0.0), "lr": 0.5}, ByHalves()) == {"lr": 0.5}


def test_an_objective_need_not_derive_anything():
    assert finalise({"loss": (1.0, 2.0)}, Objective()) == {"loss": 0.5}


def test_a_loss_that_is_no_number_stays_one_that_is_none():
    assert math.isnan(finalise({"loss": (math.nan, 1.0)}, ByHalves())["twice"])


class Histogram(Objective):
    """An objective that counts."""

    def derived(self, means):
        return {"most": float(means["counts"].max())} if "counts" in means else {}


def test_the_mean_of_an_array_is_for_what_is_derived_of_it_alone():
    assert finalise({"loss": (1.0, 2.0), "counts": (np.array([1.0, 6.0]), 4.0)}, Histogram()) == {"loss": 0.5, "most": 1.5}
    assert finalise({"counts": (np.zeros(2), 0.0)}, Histogram()) == {}
