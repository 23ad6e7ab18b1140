import re

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from small_microdit import abstract

from tinygen import optim
from tinygen.errors import UserError

RATE = dict(lr=3e-4, schedule="linear", warmup=100, decay_steps=5_000, final_lr=1e-5)
ADAMW = dict(b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1, clip=1.0)


def rates(counts, **changes):
    schedule = optim.make_schedule(**(RATE | changes))
    return np.array([float(schedule(np.int32(count))) for count in counts])


# A schedule is float32: relative 1e-6


def test_linear_falls_over_its_steps_and_then_stays():
    got = rates([0, 1, 1_250, 2_500, 4_999, 5_000, 5_001, 100_000])
    fall = 2.9e-4 / 5_000
    want = [3e-4, 3e-4 - fall, 3e-4 - 1_250 * fall, 1.55e-4, 1e-5 + fall, 1e-5, 1e-5, 1e-5]
    assert got == pytest.approx(want, rel=1e-5)  # 1e-5 is left over when 2.9e-4 is taken from 3e-4: thirty times the rounding


def test_constant_stays():
    assert rates([0, 1, 5_000, 100_000], schedule="constant") == pytest.approx([3e-4] * 4, rel=1e-6)


def test_warmup_cosine_rises_in_equal_parts_and_falls_as_half_a_cosine():
    got = rates([0, 1, 49, 50, 99, 100, 2_550, 5_000, 9_000], schedule="warmup_cosine")
    step = (3e-4 - 3e-6) / 100  # from lr / warmup at the first update to lr after `warmup` of them
    want = [3e-6, 3e-6 + step, 3e-6 + 49 * step, 3e-6 + 50 * step, 3e-6 + 99 * step, 3e-4, (3e-4 + 1e-5) / 2, 1e-5, 1e-5]
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("warmup", [0, 10, 20])
def test_a_run_no_longer_than_its_warmup_still_ends_at_the_final_rate(warmup):
    got = rates(range(12), schedule="warmup_cosine", warmup=warmup, decay_steps=10)
    assert np.all(got > 0)
    assert got.max() == pytest.approx(3e-4, rel=1e-6)
    assert got[10:] == pytest.approx([1e-5] * 2, rel=1e-5)


@pytest.mark.parametrize(
    ("start", "steps", "skipped", "changes", "said"),
    [
        (0, 1_000, 0, {}, "0.0003 at step 1, its peak, 0.000242 at the last step (1,000)"),
        (0, 1_000, 0, dict(schedule="constant"), "0.0003 at every step"),
        (0, 5_000, 0, dict(schedule="warmup_cosine"), "3e-06 at step 1, 0.0003 at its peak (step 101), 1e-05 at the last step (5,000)"),
        (
            50,
            5_000,
            0,
            dict(schedule="warmup_cosine"),
            "0.000152 at step 51, 0.0003 at its peak (step 101), 1e-05 at the last step (5,000)",
        ),
        (
            60,
            5_000,
            10,
            dict(schedule="warmup_cosine"),
            "0.000152 at step 61, 0.0003 at its peak (step 111), 1e-05 at the last step (5,000)",
        ),
        (
            2_550,
            5_000,
            0,
            dict(schedule="warmup_cosine"),
            "0.000155 at step 2,551, 0.0003 at its peak (step 101, passed), 1e-05 at the last",
        ),
        (0, 50, 0, dict(schedule="warmup_cosine"), "3e-06 at step 1, 0.000149 at its peak (step 50), 0.000149 at the last step (50)"),
        (0, 5_001, 0, dict(lr=1e-6), "1e-06 at step 1, 1e-05 at its peak (step 5,001), 1e-05 at the last step (5,001)"),
    ],
)
def test_the_outlook_names_the_rate_now_at_its_peak_and_at_the_end(start, steps, skipped, changes, said):
    assert said in optim.outlook(start, steps, skipped, **(RATE | changes))


COSINE = dict(lr=1e-3, schedule="warmup_cosine", warmup=10, decay_steps=100, final_lr=1e-5)
ODD = [
    (0, 20, dict(warmup=100, decay_steps=20), ["takes all 20 steps, so the learning rate never decays"]),
    (0, 50, dict(warmup=100, decay_steps=60), ["takes all 50 steps, so the learning rate never reaches config.optim.lr=0.001"]),
    (0, 50, dict(), ["config.optim.decay_steps=100 is far beyond config.train.steps=50, so the learning rate ends high"]),
    (100, 200, dict(), ["all 100 remaining steps have the lowest learning rate, 1e-05, since config.optim.decay_steps=100"]),
    (90, 200, dict(), ["100 of the 110 remaining steps have the lowest learning rate"]),
    (0, 2_000, dict(), ["1,900 of the 2,000 remaining steps have the lowest learning rate"]),
    (0, 2_000, dict(schedule="linear"), ["1,900 of the 2,000 remaining steps have the lowest learning rate"]),
    (0, 100, dict(lr=1e-6), ["the learning rate rises, from config.optim.lr=1e-06 to config.optim.final_lr=1e-05"]),
    (0, 50, dict(warmup=200, decay_steps=1_000), ["takes all 50 steps", "far beyond config.train.steps=50"]),
    (0, 150, dict(warmup=200, decay_steps=1_000), ["takes all 150 steps", "far beyond config.train.steps=150"]),
]
"""start, steps, changes of COSINE, warnings; 90 of 200 is 90.9 % at the lowest rate."""


@pytest.mark.parametrize(("start", "steps", "changes", "said"), ODD)
def test_what_is_odd_about_a_schedule_is_said_with_overrides_that_mend_it(start, steps, changes, said):
    keys = COSINE | changes
    found = optim.oddities(start, steps, 0, **keys)
    assert len(found) == len(said), found
    assert all(words in line for words, line in zip(said, found, strict=True)), found
    for key, value in re.findall(r"--config\.optim\.(\w+)=(\S+)", " ".join(found)):
        keys[key] = type(keys[key])(float(value))
    assert optim.oddities(start, steps, 0, **keys) == []
    assert keys != COSINE | changes
    schedule = optim.make_schedule(**keys)
    ahead = [float(schedule(np.int32(count))) for count in range(start, steps)]
    assert ahead[-1] < 0.25 * max(ahead)  # it learns, and comes to rest


@pytest.mark.parametrize(
    ("start", "steps", "changes"),
    [
        (0, 100, {}),
        (95, 100, {}),  # at the end of any run the rate is low
        (0, 2, dict(warmup=0, decay_steps=2)),
        (0, 1, dict(warmup=0, decay_steps=1)),
        (0, 120, {}),
        (0, 90, {}),
        (0, 2_000, dict(schedule="constant")),
        (0, 400, dict(schedule="linear")),  # a tail of three quarters, as dit_faces_80m has it
    ],
)
def test_nothing_is_odd_about_a_schedule_as_long_as_the_run(start, steps, changes):
    assert optim.oddities(start, steps, 0, **(COSINE | changes)) == []


def test_what_a_mended_schedule_shows_is_said_in_the_same_breath():
    found = optim.oddities(10, 2_000_000, 0, **(COSINE | dict(warmup=2_000_000, decay_steps=2)))
    assert "--config.optim.decay_steps=2000000 " in found[-2]
    assert found[-1].startswith("with that, the warm-up, config.optim.warmup=")
    keys = COSINE | dict(warmup=2_000_000, decay_steps=2)
    for key, value in re.findall(r"--config\.optim\.(\w+)=(\S+)", " ".join(found)):
        keys[key] = type(keys[key])(value)
    assert optim.oddities(10, 2_000_000, 0, **keys) == []


def test_a_tail_that_a_run_has_had_before_is_not_warned_of_again():
    assert optim.oddities(300, 400, 0, fresh=True, **COSINE)
    assert optim.oddities(300, 400, 0, fresh=False, **COSINE) == []


def test_the_steps_of_a_schedule_are_updates_so_that_skipped_ones_come_on_top():
    assert optim.oddities(100, 200, 100, **(COSINE | dict(decay_steps=200))) == []  # none taken: all of it is to come
    early = COSINE | dict(decay_steps=110)
    assert "90 of the 100 remaining steps" in optim.oddities(100, 200, 0, **early)[0]
    assert optim.oddities(100, 200, 50, **early) == []  # 60 of the 100 are yet to come before it


def test_an_unknown_schedule_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'linear'"):
        rates([0], schedule="linaer")


@pytest.mark.parametrize("adaln", ["block", "shared"])
def test_decay_acts_on_every_matrix_but_the_embedding_and_on_nothing_else(adaln):
    params = nnx.to_pure_dict(abstract(adaln=adaln, experts=2, mixer_depth=1)[1])
    leaves = zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(optim.decayed(params)), strict=True)
    kinds = {}
    for (path, leaf), decayed in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        of_each_expert = "/experts/" in name and not name.endswith("router")
        assert decayed == (len(leaf.shape) == 2 + of_each_expert and not name.startswith("label")), name
        kinds.setdefault(decayed, set()).add(name.split("/")[-1])
    assert kinds[True] == {"kernel", "router"}
    assert kinds[False] == {"bias", "scale", "embedding", "null"} | ({"modulation_table"} if adaln == "shared" else set())


def numpy_adamw(params, gradients, rate):
    """Parameters after each gradient, from the papers' equations, in float64."""
    params = {name: value.astype(np.float64) for name, value in params.items()}
    m, v = ({name: np.zeros(value.shape) for name, value in params.items()} for _ in range(2))
    for t, gradient in enumerate(gradients, start=1):
        norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradient.values()))
        for name, g in gradient.items():
            g = g / max(1.0, norm / ADAMW["clip"])
            m[name] = ADAMW["b1"] * m[name] + (1 - ADAMW["b1"]) * g
            v[name] = ADAMW["b2"] * v[name] + (1 - ADAMW["b2"]) * g**2
            corrected = m[name] / (1 - ADAMW["b1"] ** t) / (np.sqrt(v[name] / (1 - ADAMW["b2"] ** t)) + ADAMW["eps"])
            decay = ADAMW["weight_decay"] * params[name] if name == "kernel" else 0
            params[name] = params[name] - rate(t - 1) * (corrected + decay)
    return params


def test_steps_are_adamw_s_clipped_by_the_norm_over_all_leaves():
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("kernel", (3, 4)), ("bias", (4,)))}
    gradients = [{name: (size * rng.normal(size=p.shape)).astype(np.float32) for name, p in params.items()} for size in (5, 0.05, 1)]
    schedule = optim.make_schedule(**(RATE | dict(lr=0.1, decay_steps=4)))
    tx = optim.make_optimizer(schedule, **ADAMW)

    @jax.jit
    def run(params, gradients):
        opt_state = tx.init(params)
        for gradient in gradients:
            updates, opt_state = tx.update(gradient, opt_state, params, grad_norm=optax.tree.norm(gradient))
            params = optax.apply_updates(params, updates)
        return params

    got, want = run(params, gradients), numpy_adamw(params, gradients, lambda n: 0.1 + (1e-5 - 0.1) * n / 4)
    for name in params:
        np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=2e-6)  # float32


@pytest.mark.parametrize(("clip", "size"), [(1.0, 1.0), (0.25, 0.25), (0.0, 5.0), (9.0, 5.0)])
def test_clipping_bounds_the_global_norm_and_zero_turns_it_off(clip, size):
    gradient = {"kernel": np.array([[3.0]], np.float32), "bias": np.array([4.0], np.float32)}  # norm 5
    clipping = optim.make_optimizer(lambda _: 1.0, **(ADAMW | dict(clip=clip)))
    # Adam's first moment after one step is a tenth of the clipped gradient
    moment = clipping.update(gradient, clipping.init(gradient), gradient, grad_norm=np.float32(5.0))[1]["adam"].mu
    assert float(optax.tree.norm(moment)) == pytest.approx(0.1 * size, rel=1e-5)
    assert float(moment["bias"][0] / moment["kernel"][0, 0]) == pytest.approx(4 / 3, rel=1e-6)


def test_the_parts_of_the_chain_keep_the_names_that_checkpoints_hold():
    tx = optim.make_optimizer(lambda _: 1.0, **ADAMW)
    assert list(tx.init({"kernel": np.zeros((1, 1))})) == ["clip", "adam", "decay", "rate"]
