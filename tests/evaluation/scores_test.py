"""The scores by name: what they are called, what they need, and what they say of sets whose answer is known."""

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.evaluation import scores
from tinygen.evaluation.metrics import frechet, frechet_error, neighbours
from tinygen.evaluation.scores import DURING, SCORES, Side, chosen, named, note, rules, shortage, side_of

NUMBERS = np.random.default_rng(0)
REFERENCE = NUMBERS.normal(size=(400, 8)).astype(np.float32)


@pytest.fixture
def network(toy_network):
    return toy_network()


@pytest.fixture
def inception(toy_network):
    return toy_network(name="inception", distance="FID")


def side(rows, logits=None):
    return side_of("some", "abc", rows, logits)


def all_scores(samples, reference, network, names=("fd", "kid", "pr", "dc")):
    found = [each.compute(samples, reference, network) for each in chosen(names, lambda: network, "--scores").values()]
    return {name: value for each in found for name, value in each.items()}


def test_only_inceptions_distances_are_called_fid_and_kid(network, inception, toy_network):
    efflite = toy_network(name="efflite0", distance="FD-EffLite0")
    assert [named(each, inception) for each in ("fd", "kid", "precision")] == ["fid", "kid", "precision"]
    assert [named(each, efflite) for each in ("fd", "kid", "precision")] == ["fd_efflite0", "kd_efflite0", "precision_efflite0"]
    assert [named(each, network) for each in ("fd", "kid", "density")] == ["fd_toy", "kd_toy", "density_toy"]
    run = toy_network(name="inception", distance="FD-inception")  # a run of that name is not Inception
    assert [named(each, run) for each in ("fd", "kid", "recall")] == ["fd_inception", "kd_inception", "recall_inception"]
    assert named("is", run) == "is_inception"


@pytest.mark.parametrize("known", [SCORES, DURING], ids=["after", "during"])
def test_a_distance_of_no_more_pictures_than_features_is_no_fid(inception, toy_network, known):
    for few, many in ((8, 400), (400, 8)):
        found = known["fd"].compute(side(REFERENCE[:few]), side(REFERENCE[:many]), inception)
        assert next(iter(found)) == "fd_inception"
    for num in (9, 400):
        assert next(iter(known["fd"].compute(side(REFERENCE[:num]), side(REFERENCE), inception))) == "fid"
    assert next(iter(known["fd"].compute(side(REFERENCE[:8]), side(REFERENCE), toy_network()))) == "fd_toy"
    assert next(iter(SCORES["kid"].compute(side(REFERENCE[:8]), side(REFERENCE), inception))) == "kid"  # has no such bias


def test_what_a_distance_lacks_is_noted(inception, toy_network):
    unknown = toy_network(name="inception", distance="FD-Inception")
    assert note(9, 9, inception) == note(9, 0, toy_network()) == ""
    assert note(8, 0, inception) == "8 samples for 8 features: far too large"
    assert note(9, 8, toy_network()) == "8 reference pictures for 8 features: far too large"
    assert note(9, 9, unknown) == "unknown weights"
    assert note(3, 4, unknown).count(";") == 2


def test_the_protocol_says_how_many_pictures_scores_are_really_of():
    assert rules(50_000, 60_000) == (
        "kid of 100 subsets of 1000, pr of 3 and dc of 5 neighbours among 10000 samples and 10000 of the reference, "
        "is of 10 splits of 5000 or one more"
    )
    assert rules(24, 64).startswith("kid of 100 subsets of 12, pr of 3 and dc of 5 neighbours among 24 samples and 64 of the reference")
    assert rules(24, 0).startswith("kid of 100 subsets of 12, ")


def test_each_score_refuses_fewer_pictures_than_its_figure_has_a_meaning_for():
    least = {"fd": 2, "kid": 4, "pr": 4, "dc": 6, "is": 20}
    for name, score in SCORES.items():
        assert not shortage({name: score}, least[name])
        assert shortage({name: score}, least[name] - 1) == f"{name} needs {least[name]} pictures at least"


def test_scores_come_in_the_order_they_were_asked_for(network):
    assert list(chosen(["pr", "fd"], lambda: network, "--scores")) == ["pr", "fd"]
    assert chosen(["fd"], lambda: network, "--scores", DURING)["fd"] is not SCORES["fd"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["fid"], "unknown --scores 'fid': did you mean 'fd'"),
        ([""], "unknown --scores ''"),
        ([], "--scores: name at least one of fd, kid, pr, dc, is"),
        (["is"], "--scores=is: the Inception Score is one of Inception's classes; toy has others"),
    ],
)
def test_other_scores_are_refused(network, names, message):
    with pytest.raises(UserError, match=message):
        chosen(names, lambda: network, "--scores")


def test_the_same_pictures_are_at_no_distance_and_cover_each_other(network):
    found = all_scores(side(REFERENCE), side(REFERENCE), network)
    assert found["fd_toy"] == pytest.approx(0, abs=1e-6)
    assert -0.1 < found["kd_toy"] < 0  # unbiased: of a set and itself a little below
    assert (found["precision_toy"], found["recall_toy"], found["coverage_toy"]) == (1, 1, 1)


def test_a_shift_by_d_is_at_distance_d_squared_and_what_is_far_is_not_precise(network):
    found = all_scores(side(REFERENCE + 3), side(REFERENCE), network)
    assert found["fd_toy"] == pytest.approx(8 * 9, rel=1e-5)
    assert found["kd_toy"] > 0.1
    assert found["precision_toy"] == found["density_toy"] == 0


def test_a_sign_says_whether_less_is_better(network):
    near, far = (all_scores(side(REFERENCE + shift), side(REFERENCE), network) for shift in (0.1, 1.0))
    for score in SCORES.values():
        if "logits" not in score.needs:
            name = named(score.first, network)
            assert score.sign * near[name] < score.sign * far[name], name


def test_the_first_value_is_the_one_a_score_is_ranked_by(inception):
    logits = NUMBERS.normal(size=(400, 5)).astype(np.float32)
    for known in (SCORES, DURING):
        for score in known.values():
            values = score.compute(side(REFERENCE, logits), side(REFERENCE), inception)
            assert next(iter(values)) == named(score.first, inception)


def test_a_distance_has_an_error_and_its_limit_where_there_are_enough(network):
    few, some = (all_scores(side(REFERENCE[:num] + 1), side(REFERENCE), network, ["fd"]) for num in (10, 17))
    assert list(few) == list(some) == ["fd_toy"]  # half of them are no more than features
    assert len(all_scores(side(REFERENCE[:18] + 1), side(REFERENCE), network, ["fd"])) == 3
    many = all_scores(side(REFERENCE + 1), side(REFERENCE), network, ["fd"])
    assert list(many) == ["fd_toy", "fd_toy_stderr", "fd_toy_infinity"]
    assert 0 < many["fd_toy_stderr"] < many["fd_toy"]
    distance = frechet.distance_from(side(REFERENCE).mean, side(REFERENCE).covariance)
    assert many["fd_toy_stderr"] == frechet_error.standard_error(REFERENCE + 1, distance)


def test_while_a_run_learns_the_distance_comes_alone_and_is_the_same(network):
    samples, reference = side(REFERENCE[:300] * 1.1), side(REFERENCE)
    during, after = (known["fd"].compute(samples, reference, network) for known in (DURING, SCORES))
    assert list(during) == ["fd_toy"]
    assert during["fd_toy"] == pytest.approx(after["fd_toy"], rel=1e-9)


def test_a_reference_without_pictures_serves_the_distance_alone(network):
    whole = side(REFERENCE)
    statistics = Side(name="ref.npz", num=0, fingerprint="abc", mean=whole.mean, covariance=whole.covariance)
    assert all_scores(side(REFERENCE), statistics, network, ["fd"])["fd_toy"] == pytest.approx(0, abs=1e-6)
    for name in ("kid", "pr", "dc"):
        assert "pictures" in SCORES[name].needs
        with pytest.raises(UserError, match=r"ref\.npz holds only a mean and a covariance"):
            all_scores(side(REFERENCE), statistics, network, [name])


def test_neighbours_are_taken_from_all_over_pictures_that_lie_class_by_class(network, monkeypatch):
    monkeypatch.setattr(scores, "NEIGHBOURS", 100)
    classes = np.concatenate([REFERENCE[:200], REFERENCE[200:] + 50])  # two, far apart
    found = all_scores(side(classes), side(REFERENCE + 50), network, ["pr", "dc"])
    assert 0.3 < found["precision_toy"] < 0.7  # the first hundred alone are all of the one
    again = all_scores(side(classes), side(REFERENCE + 50), network, ["pr", "dc"])
    assert found == again


def test_few_pictures_are_all_compared(network):
    expected = neighbours.precision_recall(REFERENCE[:150] + 0.5, REFERENCE)
    found = all_scores(side(REFERENCE[:150] + 0.5), side(REFERENCE), network, ["pr"])
    assert tuple(found.values()) == tuple(expected)


def test_a_side_without_enough_pictures_or_with_numbers_that_are_none_is_refused():
    with pytest.raises(UserError, match="needs 2 images or more"):
        side(REFERENCE[:1])
    with pytest.raises(UserError, match=r"image 7 \(counted from 0\) are not finite"):
        side(np.where(np.arange(400)[:, None] == 7, np.nan, REFERENCE))
