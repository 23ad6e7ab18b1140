import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tinygen import report
from tinygen.cli import main as cli
from tinygen.errors import UserError
from tinygen.report import run

ROOT = Path(__file__).parents[2]
NOW = 1_795_830_000.0
EVIL = "</script><script>boom()</script><img src=x onerror=boom()>"


def metrics(steps, **more):
    return [{"step": step, "loss": 2 / step, "lr": 1e-3, **{name: of(step) for name, of in more.items()}} for step in steps]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_picture(path, seed=0, size=(40, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)).save(path)


@pytest.fixture
def made(tmp_path):
    """made("name", settings, lines, events, steps=[...]): a small workdir with all that a run leaves."""

    def make(name="a", settings=None, lines=None, events=(), steps=(1, 10)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(settings or {"batch_size": 4, "train": {"steps": 10}}))
        (folder / "manifest.json").write_text(json.dumps({"parameters": 60208, "device_kind": "cpu", "device_count": 1}))
        write_lines(folder / "metrics.jsonl", lines or metrics(range(1, 11)))
        write_lines(folder / "events.jsonl", events)
        for step in steps:
            write_picture(folder / f"samples/{step:06d}.png", step)
        return folder

    return make


def written(*folders, **options):
    """The page of some workdirs, as text."""
    together = f"report-{'-'.join(folder.name for folder in folders)}.html"
    target = folders[0] / "report.html" if len(folders) == 1 else folders[0].parent / together
    assert report.main([str(folder) for folder in folders], out=options.get("out")) == 0
    return target.read_text("utf-8")


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def chart(data, title):
    return next(each for each in data["charts"] if each["title"] == title)


# The command


def test_it_writes_one_page_beside_the_run_and_says_where_and_what_it_lacks(made, capsys):
    folder = made()
    (folder / "manifest.json").unlink()
    assert cli.main(["report", f"--workdir={folder}"]) == 0
    said = capsys.readouterr().out
    assert re.match(rf"{folder}/report.html  \d+\.\d MB\n", said)
    assert "  a: manifest.json is missing\n" in said
    assert not list(folder.glob("*.new"))


def test_it_imports_no_jax(made):
    code = "import sys; from tinygen.cli.main import main; assert main(sys.argv[1:]) == 0; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", f"--workdir={made()}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"jax", "tensorflow", "flax", "orbax", "grain"} & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--workdir is missing"),
        (["--workdir="], "--workdir is missing"),
        (["--workdir=RUN,,"], "--workdir is missing"),
        (["--workdir=RUN,nowhere"], "--workdir=nowhere: there is no such folder (several are separated by commas)"),
        (["--workdir=FILE"], "is a file"),
        (["--workdir=EMPTY"], "holds no run: it has none of config.json, metrics.jsonl"),
        (["--workdir=RUN", "--out=nowhere/x.html"], "there is no folder nowhere"),
        (["--workdir=RUN", "--out=EMPTY"], "is a folder"),
        (["--workdir=RUN", "--out=/proc/report.html"], "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused(made, tmp_path, capsys, arguments, said):
    (tmp_path / "empty").mkdir()
    folder = made()
    names = {"RUN": str(folder), "FILE": str(folder / "config.json"), "EMPTY": str(tmp_path / "empty")}
    assert cli.main(["report", *(re.sub("RUN|FILE|EMPTY", lambda match: names[match[0]], each) for each in arguments)]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "report.html").exists()


def test_an_older_page_stays_whole_where_the_new_one_cannot_be_written(made, monkeypatch):
    folder = made()
    before = written(folder)
    monkeypatch.setattr(os, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(UserError, match="No space left"):
        written(folder)
    assert (folder / "report.html").read_text("utf-8") == before
    assert not list(folder.glob("*.new")) + list(folder.glob(".*.new"))


def test_a_page_of_several_runs_replaces_that_of_none(made):
    runs = [made(name) for name in ("a", "b")]
    alone = [written(run) for run in runs]
    assert written(*runs) not in alone
    assert [(run / "report.html").read_text("utf-8") for run in runs] == alone


# Runs that are not whole


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "[1]", "config.json is damaged"),
        ("manifest.json", "\x00", "manifest.json is damaged"),
        (
            "metrics.jsonl",
            '{"step": 1, "loss": 1.0}\n{"step": 2, "lo\n{"step": 3, "loss": 0.5}\n',
            "1 damaged line(s) left out, the first is line 2",
        ),
        ("metrics.jsonl", "", "holds no numbers yet"),
        ("metrics.jsonl", '{"step": 1, "loss": NaN}\n{"step": 2, "loss": 1e999}\n', "not finite loss (2x)"),
        ("metrics.jsonl", '{"step": 1, "loss": "low"}\n{"step": "two"}\n', "not drawn, for want of numbers or of room: loss, step"),
        ("eval.jsonl", "nothing\n", "eval.jsonl: 1 damaged line"),
        ("data.json", "[", "data.json is damaged"),
        ("samples/000010.png", "\x89PNG", "samples/000010.png cannot be shown"),
        ("samples/000010.wav", "RIFF", "1 file(s) not named"),
    ],
)
def test_what_is_damaged_is_named_on_the_page_and_the_rest_is_shown(made, name, content, said):
    folder = made()
    (folder / name).write_text(content)
    text = written(folder)
    assert said in re.search(r'<aside class="notices".*?</aside>', text, re.S)[0]
    assert data_of(text)["grids"][0]["steps"][0] == 1


def test_a_truncated_picture_is_left_out(made):
    folder = made()
    path = folder / "samples/000010.png"
    path.write_bytes(path.read_bytes()[:-400])
    text = written(folder)
    assert "samples/000010.png cannot be shown" in text
    assert data_of(text)["grids"][0]["steps"] == [1]


def test_a_torn_last_line_belongs_to_a_running_run_and_is_silently_ignored(made):
    folder = made()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')
    text = written(folder)
    assert '<aside class="notices"' not in text
    assert chart(data_of(text), "Loss")["lines"][0]["x"] == list(range(1, 11))


@pytest.mark.parametrize("kept", ["metrics.jsonl", "samples", "config.json"])
def test_a_part_of_a_run_alone_gives_a_page(made, tmp_path, kept):
    folder = made()
    bare = tmp_path / "bare"
    bare.mkdir()
    (folder / kept).rename(bare / kept)
    data = data_of(written(bare))
    assert bool(data["charts"]) == (kept == "metrics.jsonl")
    assert bool(data["grids"]) == (kept == "samples")


# What a run says of itself


@pytest.mark.parametrize(
    ("steps", "events", "age", "said"),
    [
        (10, [], 9999, "finished at step 10 of 10"),
        (6, [{"event": "start"}, {"event": "stopped", "signal": "SIGTERM"}], 1, "stopped at step 6 of 10"),
        (6, [{"event": "stopped"}, {"event": "start"}], 1, "running at step 6 of 10"),
        (6, [], 9999, "unfinished at step 6 of 10"),
    ],
)
def test_a_run_is_finished_stopped_running_or_unfinished(made, steps, events, age, said):
    folder = made(lines=metrics(range(1, steps + 1)), events=events, steps=[1])
    os.utime(folder / "metrics.jsonl", (NOW - age, NOW - age))
    assert run.read(str(folder), "a").status(NOW) == said


def test_of_lines_with_the_same_step_the_later_holds(made):
    folder = made(lines=[*metrics(range(1, 9)), {"step": 5, "loss": 7.0}, {"step": 6, "loss": 8.0}])
    series = run.read(str(folder), "a").series["loss"]
    assert series.steps.tolist() == list(range(1, 9))
    assert series.values[4:6].tolist() == [7.0, 8.0]


def test_configuration_marks_what_the_recipe_had_otherwise_and_where_runs_differ(made):
    settings = [{"optim": {"lr": lr, "b1": 0.9}, "train": {"steps": 10}} for lr in (0.5, 0.25)]
    start = {"event": "start", "recipe": "configs/x.py", "changed": {"train.steps": [3200, 10]}}
    text = written(made("a", settings[0], events=[start]), made("b", settings[1]))
    rows = re.findall(r'<tr( class=differs)?><th scope="row">([\w.]+)</th>', text)
    assert {key for _, key in rows} == {"optim.lr", "optim.b1", "train.steps"}
    assert {key for differs, key in rows if differs} == {"optim.lr", "train.steps"}
    assert '<span class="was">recipe: 3200</span>' in text


def test_events_of_any_kind_are_shown_with_their_fields_and_older_changes_too(made):
    change = {"train.steps": {"from": 10, "to": 20}}
    folder = made(events=[{"time": "2026-11-28T01:40:00", "step": 6, "event": "rollback", "to": 4}, {"event": "config", "changes": change}])
    write_lines(folder / "config_changes.jsonl", [change, {"seed": {"from": 1, "to": 2}}])
    text = written(folder)
    assert "2026-11-28 01:40:00" in text
    assert "rollback" in text
    assert text.count("train.steps: 10 → 20") == 1
    assert "seed: 1 → 2" in text
    assert data_of(text)["marks"] == [{"step": 6, "text": "rollback"}]


def test_commands_and_links_lead_to_the_run_from_where_the_page_is(made, tmp_path):
    folder = made("a run")
    (folder / "checkpoints/10").mkdir(parents=True)
    report.main([str(folder)], out=str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text("utf-8")
    assert 'href="a%20run/metrics.jsonl"' in text
    assert f"tinygen sample --ckpt=&#x27;{folder}&#x27;" in text
    assert f"tinygen eval --ckpt=&#x27;{folder}&#x27;" in text
    assert "Checkpoints at steps 10." in text


def test_what_files_say_is_never_taken_for_html(made):
    folder = made(EVIL.replace("/", "|"), {"data": {"name": EVIL}, EVIL: 1}, events=[{"event": EVIL, EVIL: EVIL}])
    write_lines(folder / "eval.jsonl", [{EVIL: EVIL}])
    write_lines(folder / "metrics.jsonl", [{"step": 1, EVIL: 1.0, "loss": 1}, {"step": 2, EVIL: 2.0, "loss": 1}])
    (folder / "data.json").write_text(json.dumps([{"caption": EVIL, "label": "\ud800"}]))
    write_picture(folder / "data.png")
    (folder / "prompts.txt").write_bytes(f"{EVIL}\na b\xff".encode("latin-1"))
    (folder / "samples").mkdir(exist_ok=True)
    write_picture(folder / "samples/000001.png")
    text = written(folder)
    assert "<img src=x" not in text
    assert "<script>boom" not in text
    assert data_of(text)["examples"][0]["captions"] == [f"\ud800: {EVIL}"]
    assert data_of(text)["grids"][0]["runs"][0]["captions"] == [EVIL, "a b\N{REPLACEMENT CHARACTER}"]


def test_runs_of_the_same_name_are_told_apart_by_their_folders():
    assert report.names(["x/a/run", "x/b/run", "x/b/other"]) == ["a/run", "b/run", "other"]
    assert report.names(["x/run", "x/run"]) == ["run", "run"]


def test_a_card_shows_the_loss_before_weighting_where_the_weighted_one_says_nothing(made):
    even = made("even", lines=metrics(range(1, 41), raw_loss=lambda step: 2 / step, eval_ema_loss=lambda step: 0.5))
    more = dict(raw_loss=lambda step: 0.25, eval_ema_raw_loss=lambda step: 0.375, eval_ema_velocity_loss=lambda step: 0.1875)
    settings = {"batch_size": 4, "train": {"steps": 40}, "objective": {"name": "meanflow", "power": 0.25}}
    weighted = made("weighted", settings, lines=metrics(range(1, 41), eval_ema_loss=lambda step: 7.0, **more))
    tiles = [
        re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", card)[:3]
        for card in re.findall(r'<dl class="tiles">.*?</dl>', written(even, weighted))
    ]
    assert tiles[0][:2] == [
        ("loss, mean of the last 5 %", f"{np.mean([2 / step for step in (38, 39, 40)]):.4g}"),
        ("held out, averaged weights", "0.5"),
    ]
    assert tiles[1] == [
        ("loss, before weighting, mean of the last 5 %", "0.25"),
        ("held out, before weighting, averaged weights", "0.375"),
        ("held out, velocity, averaged weights", "0.1875"),
    ]
