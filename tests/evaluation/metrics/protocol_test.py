"""What makes two scores comparable."""

from tinygen.evaluation.metrics.protocol import fingerprint, unlike

PROTOCOL = {"features": "toy", "nfe": 25, "guidance": 1.5, "guidance_interval": [0.0, 1.0], "ema": True, "sampler": None}


def test_equal_protocols_have_equal_fingerprints_in_whatever_order_they_were_written():
    assert fingerprint(PROTOCOL) == fingerprint(dict(reversed(PROTOCOL.items())))
    assert len(fingerprint(PROTOCOL)) == 12
    assert int(fingerprint(PROTOCOL), 16) >= 0


def test_every_field_changes_the_fingerprint_and_so_does_one_more():
    others = [{**PROTOCOL, name: "another"} for name in PROTOCOL] + [{**PROTOCOL, "preset": "adm"}, {**PROTOCOL, "nfe": 25.5}]
    assert len({fingerprint(each) for each in [PROTOCOL, *others]}) == len(others) + 1


def test_a_fingerprint_stays_what_it_is():
    """Records of earlier versions hold it."""
    assert fingerprint({"nfe": 25, "ema": True}) == "6c60e5556ba0"


def test_fields_that_differ_are_named_with_both_values():
    assert unlike(PROTOCOL, dict(PROTOCOL)) == []
    other = {**PROTOCOL, "nfe": 50, "guidance_interval": [0.1, 1.0], "preset": "adm"}
    assert unlike(PROTOCOL, other) == ["guidance_interval: [0.0, 1.0] and [0.1, 1.0]", "nfe: 25 and 50", "preset: not given and adm"]
    assert unlike(PROTOCOL, other, ["nfe", "preset"]) == ["guidance_interval: [0.0, 1.0] and [0.1, 1.0]"]


def test_a_long_value_is_cut_short():
    (said,) = unlike({"labels": "3, " * 1000}, {"labels": "4"})
    assert len(said) < 200
