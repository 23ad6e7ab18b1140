"""What may be chosen in place of a recipe's sampler, and what a record says of it."""

import functools

import numpy as np
import pytest

from tinygen import config as config_lib
from tinygen.cli import flags as options
from tinygen.data.codec import Codec, Field
from tinygen.data.labels import Labels
from tinygen.errors import UserError
from tinygen.media import Image
from tinygen.samplers.table import SAMPLERS
from tinygen.samplers.time_grids import GRIDS
from tinygen.sampling.settings import configured, spent, stepping

PICTURE = Field(shape=(4, 4, 1), dtype="float32", low=-1.0, high=1.0)
PLAIN = Codec(medium=Image(), spec={"x": PICTURE})
LABELLED = Codec(
    medium=Image(), spec={"x": PICTURE, "label": Field(shape=(), dtype="int32", low=0, high=1)}, conditions=(Labels(("cat", "dog")),)
)


def chosen(codec=LABELLED, name="flow", **settings):
    return configured(config_lib.base(objective=dict(name=name)), settings, codec)


def test_guidance_asked_of_a_model_without_conditions_is_refused():
    with pytest.raises(UserError, match=r"^--guidance=3.0: this model was trained without labels or captions; omit it$"):
        chosen(PLAIN, guidance=3.0)
    assert chosen(PLAIN, guidance=1.0).objective.guidance == 1.0
    assert chosen(PLAIN).objective.guidance == 1.5  # the recipe's own is off without a condition
    assert chosen(guidance=3.0).objective.guidance == 3.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(tolerance=0.01), "--tolerance=0.01 has no effect here: it needs --sampler=dopri5"),
        (dict(shift=2.0), "--shift=2.0 has no effect here: it needs --time_grid=shifted"),
        (dict(shift=2.0, time_grid="logit_normal"), "--shift=2.0 has no effect here"),
        (dict(sampler="dopri5", time_grid="shifted"), "--time_grid=shifted has no effect here: it needs a sampler other than dopri5"),
        (dict(sampler="dopri5", shift=2.0), "--shift=2.0 has no effect here: it needs --time_grid=shifted and a sampler other than dopri5"),
        (dict(name="meanflow", guidance=2.0), "--guidance: objective 'meanflow' has no such setting: its guidance is fixed"),
        (dict(name="edm", time_grid="shifted"), "--time_grid: objective 'edm' has no such setting"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings, said):
    with pytest.raises(UserError, match=said) as caught:
        chosen(**settings)
    assert "\n" not in str(caught.value)


def test_settings_of_steps_are_told_as_far_as_they_act():
    assert stepping(chosen()) == stepping(chosen(time_grid="uniform", sampler="euler")) == stepping(chosen(name="edm")) == {}
    assert stepping(config_lib.base(objective=dict(name="regression"))) == {}
    assert stepping(chosen(time_grid="logit_normal")) == {"time_grid": "logit_normal"}
    assert stepping(chosen(time_grid="shifted", shift=2.0)) == {"time_grid": "shifted", "shift": 2.0}
    assert stepping(chosen(sampler="dopri5", tolerance=0.01)) == {"tolerance": 0.01}
    assert stepping(chosen(name="edm", sampler="dopri5")) == {"tolerance": 1e-3}


def test_evaluations_are_one_number_unless_they_differ_by_sample():
    assert spent(chosen(), np.array([20, 20, 20])) == {"nfe": 20}
    assert spent(chosen(sampler="dopri5"), np.array([19, 25, 13])) == {"nfe": 19.0, "nfe_most": 25}
    assert spent(chosen(sampler="dopri5"), np.array([13])) == {"nfe": 13.0, "nfe_most": 13}


@pytest.mark.parametrize("command", [options.SAMPLE, options.EVAL_FID])
def test_the_flags_name_every_sampler_and_grid(command):
    values = options.defined(command)
    said = functools.partial(str.__contains__, values["sampler"].help)
    assert all(map(said, SAMPLERS))
    assert all(map(functools.partial(str.__contains__, values["time_grid"].help), GRIDS))
    assert set(options.DENOISING) <= set(values)
