"""What others made - checkpoints and folders of runs - is only read: nothing in it runs, and what is absurd is refused in a line, before it
takes memory or time."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confinement import confined
from PIL import Image

from tinygen import config, train
from tinygen.cli import main as cli
from tinygen.errors import UserError

ROOT = Path(__file__).parents[2]
STEP = "checkpoints/3"
DEEP = '{"a":' * 100_000
HUGE = "9" * 4_000


@pytest.fixture
def run(released, tmp_path):
    """A copy of it, to be spoilt."""
    return Path(shutil.copytree(released, tmp_path / "run"))


def edited(name, edit):
    """A change of a JSON file: `edit(tree)` changes what it holds, or gives what is to stand there."""

    def change(run):
        path = run / name
        tree = json.loads(path.read_text())
        path.write_text(json.dumps(other if (other := edit(tree)) is not None else tree))

    return change


def written(name, content):
    return lambda run: (run / name).write_text(content)


def model(**changes):
    return edited(f"{STEP}/config/metadata", lambda tree: tree["model"].update(changes))


def top(**changes):
    return edited(f"{STEP}/config/metadata", lambda tree: tree.update(changes))


def example(**changes):
    return edited(f"{STEP}/codec/metadata", lambda tree: tree["spec"]["x"].update(changes))


def codec(**changes):
    return edited(f"{STEP}/codec/metadata", lambda tree: tree.update(changes))


def shortened(run):
    """Every file of arrays less its last bytes."""
    for path in (run / STEP / "state").rglob("d/*"):
        path.write_bytes(path.read_bytes()[:-20])


def leaves(**changes):
    """The arrays' descriptions, changed."""
    return edited(
        f"{STEP}/state/_METADATA",
        lambda tree: [leaf["value_metadata"].update(changes) for leaf in tree["tree_metadata"].values()] and None,
    )


SPOILT = {
    "a width of 10**9": (model(width=10**9), "other shape"),
    "a width that no machine word holds": (model(width=10**30), "other shape"),
    "a depth of 10**9": (model(depth=10**9), "depth=1000000000, but it holds 136 arrays"),
    "a mixer's depth of 10**9": (model(mixer_depth=10**9), "mixer_depth=1000000000, but it holds 136 arrays"),
    "an unknown key": (model(widht=8), "did you mean 'width'"),
    "a word for a number": (model(width="os.system"), "must be a whole number"),
    "an absurd word": (model(width="x" * 10**6), "must be a whole number"),
    "a list for a name": (model(name=[1]), "unknown model"),
    "an absurd name": (model(name="x" * 10**6), "unknown model"),
    "a number for a section": (top(optim=3), "must be a section"),
    "a seed of 40 digits": (top(seed=10**40), "config.seed"),
    "a batch of 10**12": (top(batch_size=10**12), "config.batch_size"),
    "no number for a rate": (top(optim={"lr": float("nan")}), "config.optim.lr=nan"),
    "a rate of 401 digits": (top(optim={"lr": 10**400}), "no float is as large"),
    "another precision": (top(precision="exec"), "unknown config.precision"),
    "a list for a config": (written(f"{STEP}/config/metadata", "[]"), "a list, not the keys"),
    "a config without end": (written(f"{STEP}/config/metadata", DEEP), "recursion"),
    "a codec without end": (written(f"{STEP}/codec/metadata", DEEP), "recursion"),
    "a list for a codec": (written(f"{STEP}/codec/metadata", "[]"), "not a codec"),
    "a height of 10**9": (example(shape=[10**9, 8, 1]), "fewer than 67,108,864"),
    "a negative height": (example(shape=[-8, 8, 1]), "positive integers"),
    "a word for a shape": (example(shape="881"), "positive integers"),
    "a dtype that is none": (example(dtype="os.system"), "unknown dtype"),
    "a bound that is none": (example(high="x"), "bounds"),
    "10**7 labels": (codec(labels=["x"] * 10**7), "at most 1,048,576 labels"),
    "a number for labels": (codec(labels=10**9), "not a codec"),
    "a label of 10**6 characters": (codec(labels=["x" * 10**6] * 10), "of at most 1,000 characters"),
    "a key that no codec has": (codec(decode="os.system"), "not a codec of this version"),
    "descriptions of arrays without end": (written(f"{STEP}/state/_METADATA", DEEP), "recursion"),
    "a list for descriptions of arrays": (written(f"{STEP}/state/_METADATA", "[]"), "cannot be read"),
    "a type of array that is none": (leaves(value_type="os.system"), "cannot be read"),
    "torn arrays": (shortened, "cannot be read"),
    "a step of 60 digits": (lambda run: (run / "checkpoints" / ("9" * 60)).mkdir(), "no run has as many steps"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_checkpoint_is_refused_in_a_few_short_lines_without_memory_or_time(name, run, capsys):
    change, words = SPOILT[name]
    change(run)
    with confined():
        assert cli.main(["sample", f"--ckpt={run}", "--num=2", "--nfe=4", f"--out={run}/out"]) == 2
    lines = capsys.readouterr().err.splitlines()
    said = next(index for index, line in enumerate(lines) if line.startswith("tinygen: "))
    assert words in "\n".join(lines[said:])
    assert len(lines) - said <= 3
    assert max(map(len, lines[said:])) < 500


@pytest.mark.parametrize("name", ["²", "٣٣", "0004", "3.tmp"])
def test_a_folder_whose_name_is_no_step_is_none(name, run):
    (run / "checkpoints" / name).mkdir()
    assert cli.main(["sample", f"--ckpt={run}", "--num=2", "--nfe=4", f"--out={run}/out"]) == 0


SPOILT_RUNS = {
    "config.json without end": written("config.json", DEEP),
    "config.json is a list": written("config.json", "[]"),
    "config.json with an unknown name": written("config.json", '{"model": {"name": [1]}}'),
    "manifest.json without end": written("manifest.json", DEEP),
    "manifest.json is a list": written("manifest.json", "[]"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOILT_RUNS)
def test_what_is_spoilt_in_a_run_is_taken_from_its_checkpoint(name, run):
    settings = config.change(config.from_json((run / "config.json").read_text()), dict(train=dict(steps=4)))
    before = {name: json.loads((run / name).read_text()) for name in ("config.json", "manifest.json")}
    SPOILT_RUNS[name](run)
    with confined():
        assert train.main(settings, str(run)) == 0
    after = {name: json.loads((run / name).read_text()) for name in before}
    assert before["config.json"]["model"].items() <= after["config.json"]["model"].items()  # and keys that came since it was released
    assert after["manifest.json"]["data_fingerprint"] == before["manifest.json"]["data_fingerprint"]


def test_a_run_with_a_step_of_60_digits_is_not_gone_on_with(run):
    (run / "checkpoints" / ("9" * 60)).mkdir()
    with confined(), pytest.raises(UserError, match="no run has as many steps"):
        train.main(config.from_json((run / "config.json").read_text()), str(run))


def test_lines_of_metrics_that_are_none_are_taken_out(run):
    strange = [DEEP, f'{{"step": {HUGE}}}', '{"step": "1"}', '{"step": NaN}', '{"step": 1e999}', "[]", "3", '{"loss": 1}', "\ud800"]
    before = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_bytes("\n".join([*before, *strange]).encode("utf-8", "surrogatepass"))
    settings = config.change(config.from_json((run / "config.json").read_text()), dict(train=dict(steps=4)))
    assert train.main(settings, str(run)) == 0
    assert [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]


TRAP = "trap_of_the_checkpoint"
WATCHED = """
import sys
from tinygen.cli import main as cli
import jax
trap, run, recipe = sys.argv[1:]
found = []

def hook(event, args):
    if event == "pickle.find_class":
        found.append((event, *args))
    if event in ("import", "compile", "exec") and (trap in repr(args)[:10**5] or run in repr(args)[:10**5]):
        found.append((event, repr(args)[:200]))

sys.addaudithook(hook)
status = [cli.main(words) for words in (
    ["sample", f"--ckpt={run}", "--num=2", "--nfe=4", f"--out={run}/out"],
    ["eval", f"--ckpt={run}"],
    ["train", f"--config={recipe}", f"--workdir={run}"],
    ["train", f"--config={recipe}", f"--config.init.ckpt={run}", f"--workdir={run}/other"],
)]
assert trap not in sys.modules
print(status, found)
"""


@pytest.mark.slow
def test_nothing_is_unpickled_imported_compiled_or_run_that_a_checkpoint_names(run, tmp_path):
    for name in ("_CHECKPOINT_METADATA", "state/array_metadatas/process_0"):
        path = run / STEP / name
        text = path.read_text().replace("orbax.checkpoint._src.handlers.json_checkpoint_handler.Json", f"{TRAP}.")
        path.write_text(text.replace('{"array_metadatas"', f'{{"type": "{TRAP}.Trap", "array_metadatas"'))
    edited(f"{STEP}/manifest/metadata", lambda tree: tree.update(__reduce__=[f"{TRAP}.run", []], module=TRAP))(run)
    assert TRAP in (run / STEP / "_CHECKPOINT_METADATA").read_text()
    (tmp_path / f"{TRAP}.py").write_text("raise SystemExit('it was imported')")
    tree = json.loads((run / "config.json").read_text())
    tree["train"] |= {"steps": 4, "preview_num": 2}
    recipe = tmp_path / "recipe.py"
    recipe.write_text(f"from tinygen.config import base\n\ndef get_config(variant=''):\n    return base(**{tree!r})\n")
    command = [sys.executable, "-c", WATCHED, TRAP, str(run), str(recipe)]
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}, timeout=400)
    assert done.stdout.splitlines()[-1:] == ["[0, 0, 0, 0] []"], done.stderr[-2000:]


def test_a_checkpoint_is_not_named_by_a_digit_that_is_no_number(run, capsys):
    (run / "checkpoints" / "²").mkdir()
    assert cli.main(["sample", f"--ckpt={run}/checkpoints/²"]) == 2
    assert "no checkpoint there" in capsys.readouterr().err


def test_a_score_that_no_float_holds_is_compared_with_none(run, capsys):
    line = {"protocol": {"features": "x"}, "fid": 10**400, "kid": 0.5}
    (run / "eval.jsonl").write_text(json.dumps(line) + "\n")
    assert cli.main(["eval-fid", "--compare", str(run), str(run)]) == 0
    out = capsys.readouterr().out
    assert "kid" in out
    assert "fid" not in out


def test_a_report_takes_numbers_that_no_float_holds(run, capsys):
    def enlarged(tree):
        large = {name: 10**400 for name, value in tree.items() if isinstance(value, int)}
        return tree | large | {name: enlarged(value) for name, value in tree.items() if isinstance(value, dict)}

    for name in ("config.json", "manifest.json"):
        tree = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(enlarged(tree | {"memory_per_device": {"params": 1}, "flops_per_step": 1})))
    for name in ("metrics.jsonl", "events.jsonl", "eval.jsonl"):
        (run / name).write_text(json.dumps({"step": 1, "loss": 10**400, "steps_per_s": 1.0, "time": 10**400, "event": 10**400}) + "\n")
        with (run / name).open("a") as file:
            file.write('{"step": 2, "loss": 1.0, "steps_per_s": 1.0}\n')
    assert cli.main(["report", f"--workdir={run}"]) == 0
    assert "Traceback" not in capsys.readouterr().err


def test_a_report_of_a_spoilt_run_leaves_out_what_is_absurd(run, capsys):
    for name in ("config.json", "manifest.json", "metrics.jsonl", "events.jsonl", "eval.jsonl", "data.json"):
        (run / name).write_text(f"{DEEP}\n")
    (run / "samples").mkdir(exist_ok=True)
    Image.new("1", (9_600, 9_600)).save(run / "samples" / "3.png")
    Image.new("1", (8, 8)).save(run / "samples" / f"{HUGE[:200]}.png")
    (run / "checkpoints" / "²").mkdir()
    with confined():
        assert cli.main(["report", f"--workdir={run}"]) == 0
    said = capsys.readouterr().out
    assert "config.json is damaged" in said
    assert "3.png cannot be shown: 9600 x 9600 pixels, and at most 33,554,432 are shown" in said
