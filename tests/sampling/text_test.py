"""A run on text: what its samples are on the terminal and on the disk, its previews, and what is refused."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tinygen import config as config_lib
from tinygen import evaluate, train
from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.errors import UserError, printable
from tinygen.media.text import MARK, GrowingText
from tinygen.media.vocabulary import Vocabulary

BYTES = Vocabulary(kind="bytes")
CONTEXT = 16


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps on short lines, and its log."""
    folder = tmp_path_factory.mktemp("writing")
    (folder / "text.txt").write_text("<|endoftext|>".join(f"line {n}: to be or not to be\n" for n in range(40)))
    config = config_lib.base(
        precision="float32",
        data=dict(name="text", path=str(folder / "text.txt"), length=CONTEXT, tokenizer="bytes"),
        model=dict(name="minigpt", width=8, depth=1, heads=2, mlp_multiple=8),
        objective=dict(name="autoregressive", new_tokens=6),
        batch_size=8,
        train=dict(steps=2, log_every=1, eval_every=2, preview_every=2, preview_num=3, checkpoint_every=2),
    )
    assert train.main(config, str(folder / "run")) == 0
    return SimpleNamespace(workdir=folder / "run", config=config)


@pytest.fixture
def write(run, tmp_path, capfd):
    """write(flags): what `tinygen sample` prints, samples.json and the files."""

    def call(*flags, out="out"):
        capfd.readouterr()
        assert cli.main(["sample", f"--ckpt={run.workdir}", f"--out={tmp_path / out}", *flags]) == 0
        said, told = capfd.readouterr(), json.loads((tmp_path / out / "samples.json").read_text())
        files = [(tmp_path / out / row["file"]).read_text("utf-8") for row in told["samples"]]
        return SimpleNamespace(out=said.out, err=said.err, told=told, files=files, folder=tmp_path / out)

    return call


@pytest.fixture
def refused(run, capfd):
    """refused(flags): the one line that a call which cannot be is told."""

    def call(command, *flags):
        assert cli.main([command, f"--ckpt={run.workdir}", *flags]) == 2
        (line,) = capfd.readouterr().err.strip().splitlines()
        return line

    return call


def test_a_lone_text_comes_with_its_prompt_and_is_what_the_file_holds(write, run):
    written = write("--prompt=to be ", "--seed=3")
    assert written.out == printable(written.files[0]) + "\n"
    assert written.files[0].startswith("to be ")
    assert written.told["samples"] == [{"file": "00000.txt", "prompt": "to be "}]
    expected = {"checkpoint": str(run.workdir), "num": 1, "seed": 3, "temperature": 1.0, "top_k": 0, "new_tokens": 6}
    assert {name: written.told[name] for name in expected} == expected
    assert "1 sample of step 2" in written.err


@pytest.mark.slow
def test_a_text_does_not_depend_on_how_many_there_are_nor_on_the_batch(write):
    alone = write("--prompt=be").files
    many = write("--prompt=be", "--num=3", out="many")
    assert many.files[:1] == alone
    assert write("--prompt=be", "--num=3", "--batch_size=1", out="one").files == many.files
    assert many.out.startswith("[0]\nbe")
    assert len(set(many.files)) > 1


@pytest.mark.slow
def test_each_line_of_a_file_begins_a_text_and_an_empty_prompt_a_document(write, tmp_path):
    (tmp_path / "lines").write_text("to be\nor not\n")
    assert [row["prompt"] for row in write(f"--prompts={tmp_path / 'lines'}").told["samples"]] == ["to be", "or not"]
    written = write("--prompt=", out="empty")
    assert [row["prompt"] for row in written.told["samples"]] == [""]


@pytest.mark.slow
def test_fewer_texts_leave_none_of_an_earlier_call(write):
    assert {path.name for path in write("--num=3").folder.iterdir()} == {*(f"0000{n}.txt" for n in range(3)), "samples.json"}
    assert {path.name for path in write("--num=1").folder.iterdir()} == {"00000.txt", "samples.json"}


@pytest.mark.slow
def test_flags_change_how_a_text_is_drawn(write):
    greedy = write("--prompt=to", "--temperature=0", "--new_tokens=4", "--num=2")
    assert greedy.files[0] == greedy.files[1]
    assert greedy.files == write("--prompt=to", "--top_k=1", "--new_tokens=4", "--num=2", "--seed=9", out="first").files
    assert (greedy.told["temperature"], greedy.told["new_tokens"]) == (0.0, 4)


@pytest.mark.slow
def test_a_prompt_that_is_longer_than_the_context_is_read_and_said_to_be(write):
    assert "a prompt has 40 tokens, and the context is 16" in write(f"--prompt={'to be or ' * 5:.40}").err
    assert "context" not in write("--prompt=to be").err


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--nfe=4", "--nfe: objective 'autoregressive' has no such setting"),
        ("--guidance=2", "--guidance: objective"),
        ("--labels=3", "--labels: this model was trained without labels"),
        ("--negative=no", "--negative"),
        ("--top_p=2", "top_p 2.0 must lie in"),
        ("--stop=", "--stop is empty"),
    ],
)
def test_what_text_has_no_use_for_is_refused_in_one_line(refused, flag, said):
    assert said in refused("sample", flag)


def test_pictures_are_not_written(finished, capfd):
    for flag, said in {"--stop=x": "--stop=x: this model writes no text", "--top_k=3": "--top_k: objective 'flow' has no such"}.items():
        assert cli.main(["sample", f"--ckpt={finished.workdir}", flag]) == 2
        assert said in capfd.readouterr().err


def test_text_has_no_fid(refused):
    assert "scores compare pictures, and this model's samples are text" in refused("eval-fid", "--num=100")


def test_previews_are_texts_marked_where_their_prompt_ends(run):
    folder = run.workdir / "samples"
    assert {"000002.txt", "000002-continuations.txt"} <= {path.name for path in folder.iterdir()}
    continued = (folder / "000002-continuations.txt").read_text("utf-8")
    assert re.findall(r"^\[(\d)\]$", continued, re.MULTILINE) == ["0", "1", "2"]
    assert continued.count(MARK) == 3
    assert MARK not in (folder / "000002.txt").read_text("utf-8")


def test_the_report_shows_texts_through_time(run, tmp_path):
    assert cli.main(["report", f"--workdir={run.workdir}", f"--out={tmp_path / 'page.html'}"]) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    shown = {grid["name"]: grid["runs"][0] for grid in data["grids"]}
    assert list(shown) == ["samples", "continuations"]
    assert shown["continuations"]["pictures"][-1]["text"] == printable(
        (run.workdir / "samples/000002-continuations.txt").read_text("utf-8")
    )
    assert shown["samples"]["pictures"][-1]["file"].endswith("samples/000002.txt")


def test_another_tokenizer_under_a_checkpoint_is_refused_by_its_name(run):
    other = config_lib.change(run.config, dict(data=dict(tokenizer="characters"), train=dict(steps=4)))
    with pytest.raises(
        UserError, match=r"the data have changed since this run began \(data.tokenizer: bytes -> characters; the vocabulary: .*\)"
    ):
        train.main(other, str(run.workdir))


def test_perplexity_is_that_of_the_mean_loss_wherever_means_are_made(run, tmp_path, capfd):
    lines = [json.loads(line) for line in (run.workdir / "metrics.jsonl").read_text().splitlines()]
    assert [line["perplexity"] for line in lines] == pytest.approx([np.exp(line["raw_loss"]) for line in lines])
    for prefix in ("eval_", "eval_ema_"):
        assert lines[-1][f"{prefix}perplexity"] == pytest.approx(np.exp(lines[-1][f"{prefix}raw_loss"]))
    copy = shutil.copytree(run.workdir, tmp_path / "copy")
    assert evaluate.main(str(copy), step=None, ema=True) == 0
    assert "perplexity" in capfd.readouterr().out


def in_pieces(text, stops=(), size=1):
    """What a growing text says, a few bytes at a time."""
    growing, tokens = GrowingText(BYTES, stops), [*text.encode(), BYTES.end]
    return [growing.add(tokens[at : at + size]) for at in range(0, len(tokens), size)], growing


def test_a_character_is_said_once_it_is_whole():
    pieces, growing = in_pieces("aé€😀b")
    assert pieces == ["a", "", "é", "", "", "€", "", "", "", "😀", "b", ""]
    assert growing.whole == "aé€😀b"


def test_half_a_character_at_the_end_is_a_mark():
    growing = GrowingText(BYTES, ())
    assert growing.add([0xE2, 0x82]) == ""
    assert growing.add([BYTES.end]) == "\ufffd"
    cut = GrowingText(BYTES, ())
    assert cut.add([97, 0xE2], last=True) == "a\ufffd"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_a_text_ends_before_what_it_stops_at_and_never_says_a_part_of_it(size):
    pieces, growing = in_pieces("one. Two -- three, Two --- four", ["Two ---", "\n"], size)
    assert growing.whole == "".join(pieces) == "one. Two -- three, "
    assert growing.ended
    assert in_pieces("Tw", ["Two"], size)[1].whole == "Tw"  # what might have become one, and did not
    assert "".join(in_pieces("Tw", ["Two"], size)[0]) == "Tw"


@pytest.mark.parametrize("size", [1, 2, 32])
@pytest.mark.parametrize(
    ("text", "stops", "left"),
    [("Hi. The end", [". The", " "], "Hi."), ("abcd", ["abcd", "bc"], "a"), ("abcd", ["cd", "bcd"], "a"), ("abcd", ["x", "d"], "abc")],
)
def test_of_several_stops_the_one_that_is_complete_first_counts_however_many_tokens_come_at_once(text, stops, left, size):
    assert in_pieces(text, stops, size)[1].whole == left


def test_lines_of_windows_are_lines_on_a_terminal():
    assert printable("a\r\nb\rc") == "a\nb\ufffdc"


@pytest.mark.slow
def test_a_terminal_that_knows_few_characters_shows_those_and_the_files_have_all(run, tmp_path):
    command = [sys.executable, "-c", "import sys; from tinygen.cli.main import main; sys.exit(main())", "sample", f"--ckpt={run.workdir}"]
    words = [f"--out={tmp_path / 'out'}", "--prompt=é", "--new_tokens=2"]
    done = subprocess.run(command + words, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:1]) == (0, "?"), done.stderr
    assert (tmp_path / "out" / "00000.txt").read_text("utf-8").startswith("é")


@pytest.mark.slow
def test_a_reader_that_leaves_early_leaves_whole_files(run, tmp_path):
    command = f"{sys.executable} -c 'import sys; from tinygen.cli.main import main; sys.exit(main())' sample --ckpt={run.workdir}"
    words = f"--out={tmp_path / 'out'} --prompt=be --new_tokens=300 --seed=5"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} {words} | head -c 1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "00000.txt").stat().st_size > 10


def test_an_evaluation_on_other_data_than_those_of_training_is_refused(run, tmp_path, monkeypatch, capfd):
    (other := tmp_path / "text.txt").write_text("<|endoftext|>".join(f"line {n}: to be or not to be\n" for n in range(39)))
    copy = shutil.copytree(run.workdir, tmp_path / "copy")
    saved = store.find(str(copy))
    moved = dataclasses.replace(saved, config=config_lib.change(saved.config, dict(data=dict(path=str(other)))))
    monkeypatch.setattr(store, "find", lambda *_: moved)
    assert cli.main(["eval", f"--ckpt={copy}"]) == 2
    assert "have changed since it was trained (1 file changed: 'text.txt'):\nthe held-out split may" in capfd.readouterr().err


def test_commands_to_a_terminal_are_not_given_to_it():
    assert printable("a\x1b[2Jb\tc\nd\x9be") == "a\ufffd[2Jb\tc\nd\ufffde"
