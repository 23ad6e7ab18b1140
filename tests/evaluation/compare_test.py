"""`tinygen eval-fid --compare A B`."""

import json
import os

import pytest

from tinygen.cli import main as cli
from tinygen.errors import UserError
from tinygen.evaluation.compare import main

PROTOCOL = {"features": "inception", "num": 50000, "nfe": 25, "guidance": 1.5, "reference": "abc"}
LINE = {"checkpoint": "runs/a", "step": 100, "seed": 0, "time": "2026-01-01T00:00:00", "fid": 4.0, "fid_stderr": 0.3, "kid": 0.01}


@pytest.fixture
def record(tmp_path):
    """record(name, *lines): a folder with such an eval.jsonl."""

    def write(name, *lines):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eval.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        return str(tmp_path / name)

    return write


def line(protocol=None, **changes):
    return {**LINE, "protocol": {**PROTOCOL, **(protocol or {})}, **changes}


def test_scores_of_one_protocol_stand_side_by_side_with_their_difference(record, capsys):
    a, b = record("a", line()), record("b", line(checkpoint="runs/b", step=200, fid=3.0, fid_stderr=0.4, kid=0.02, precision=0.7))
    assert main([a, b], []) == 0
    about_a, about_b, *rows = capsys.readouterr().out.splitlines()
    assert "checkpoint runs/a, step 100, seed 0" in about_a
    assert "checkpoint runs/b, step 200" in about_b
    assert [row.split() for row in rows] == [
        ["fid", "4", "3", "-1", "(2.0", "standard", "errors)"],  # of hypot(0.3, 0.4)
        ["kid", "0.01", "0.02", "+0.01"],
    ]


def test_scores_of_unlike_protocols_are_refused_and_the_fields_named(record):
    a, b = record("a", line()), record("b", line(dict(nfe=50, guidance=2.0)))
    with pytest.raises(UserError) as refused:
        main([a, b], [])
    first, second = str(refused.value).splitlines()
    assert "cannot be compared: guidance: 1.5 and 2.0; nfe: 25 and 50" in first
    assert second.endswith("--allow=guidance,nfe")


def test_a_field_that_is_what_one_compares_is_allowed_to_differ_and_no_other(record, capsys):
    a, b = record("a", line()), record("b", line(dict(nfe=50, guidance=2.0)))
    assert main([a, b], ["guidance", "nfe"]) == 0
    with pytest.raises(UserError, match="compared: nfe: 25 and 50"):
        main([a, b], ["guidance"])


def test_a_field_that_no_protocol_has_is_refused(record):
    with pytest.raises(UserError, match=r"unknown --allow 'guidence': did you mean 'guidance'"):
        main([record("a", line()), record("b", line())], ["guidence"])


def test_a_field_that_one_protocol_lacks_is_a_difference_whatever_the_other_says(record):
    a, b = record("a", line(dict(sampler=None))), record("b", line())
    with pytest.raises(UserError, match="sampler: None and not given"):
        main([a, b], [])


def test_the_newest_whole_line_with_a_protocol_counts(record, capsys):
    held_out = {"step": 300, "eval_loss": 0.1}  # tinygen eval's, in the same file
    a, b = record("a", line(dict(nfe=50)), line(fid=5.0), held_out), record("b", line())
    with open(f"{a}/eval.jsonl", "a") as file:
        file.write('{"fid": 9, "protocol": {')
    assert main([f"{a}/eval.jsonl", b], []) == 0
    assert "5  4  -1" in capsys.readouterr().out


def test_of_several_scores_those_that_are_alike_are_compared(record, capsys):
    a, b = record("a", line(fid=5.0), line(dict(nfe=50), fid=6.0)), record("b", line(fid=4.0), line(dict(num=7), fid=9.0))
    assert main([a, b], []) == 0
    assert "5  4  -1" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b'{"eval_loss": 1}\n', b"\xff\xfe\x00text", b"[1]\n3\n"])
def test_a_record_without_a_score_is_refused(record, tmp_path, content):
    (tmp_path / "eval.jsonl").write_bytes(content)
    with pytest.raises(UserError, match=r"^--compare \S+: \S+eval\.jsonl holds no score with a protocol"):
        main([str(tmp_path), record("b", line())], [])


def test_a_place_without_a_record_is_named(record, tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match=rf"^--compare {place}: .* is not there"):
            main([record(f"b{place.name}", line()), str(place)], [])


def test_scores_that_have_nothing_in_common_are_refused(record):
    b = {name: value for name, value in line(precision=0.7).items() if name not in ("fid", "kid")}
    with pytest.raises(UserError, match="no score in common: fid, kid; precision"):
        main([record("a", line()), record("b", b)], [])


def test_files_of_any_name_are_compared_with_workdirs(record, capsys, tmp_path):
    a = record("a", line())
    (tmp_path / "mine.jsonl").write_text(json.dumps(line(fid=5.0, note="unknown weights")))
    assert main([a, str(tmp_path / "mine.jsonl")], []) == 0
    _, about, score, _ = capsys.readouterr().out.splitlines()
    assert about.endswith("2026-01-01T00:00:00, unknown weights")
    assert "4  5  +1" in score


def test_a_record_that_is_no_file_or_too_large_is_refused_before_it_is_read(record, tmp_path):
    b = record("b", line())
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: a pipe, not a file"):
        main([str(tmp_path / "pipe"), b], [])
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="large holds no score with a protocol"):
        main([b, str(tmp_path / "large")], [])


@pytest.mark.parametrize("places", [["a"], ["a", "b", "c"]])
def test_two_places_are_compared_no_fewer_and_no_more(places):
    with pytest.raises(UserError, match="--compare takes two workdirs"):
        main(places, [])


def test_the_command_line_takes_both_places_after_one_flag(record, capsys):
    a, b = record("a", line()), record("b", line(dict(nfe=50)))
    assert cli.main(["eval-fid", "--compare", a, b]) == 2
    assert capsys.readouterr().err.startswith("tinygen: these scores have different protocols")
    assert cli.main(["eval-fid", "--compare", a, b, "--allow=nfe"]) == 0
    assert cli.main(["eval-fid", f"--compare={a}", f"--compare={b}", "--allow", "nfe"]) == 0
    assert cli.main(["eval-fid", "--allow=nfe", "--compare"]) == 2
    assert "Missing value for flag --compare" in capsys.readouterr().err
