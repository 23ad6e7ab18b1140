import json
import sys
import types

import numpy as np
import pytest

from tinygen import train
from tinygen.errors import UserError
from tinygen.media.text import GLIMPSE, Text, Vocabulary
from tinygen.workdir import writers
from tinygen.workdir.files import folder


class FakeWandb(types.ModuleType):
    """As much of wandb as the writer uses, keeping what it is told."""

    class Error(Exception):
        pass

    def __init__(self, failing=""):
        super().__init__("wandb")
        self.failing, self.begun, self.logged, self.finished = failing, [], [], 0

    def Settings(self, **settings):
        return settings

    def Image(self, array):
        return ("image", array.shape, str(array.dtype))

    def Table(self, columns, data):
        return ("table", columns, data)

    def init(self, **keywords):
        if self.failing:
            raise self.Error(self.failing)
        self.begun.append(keywords)
        return self

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    def install(failing=""):
        fake = FakeWandb(failing)
        fake.__spec__ = types.SimpleNamespace()  # find_spec looks at it
        monkeypatch.setitem(sys.modules, "wandb", fake)
        return fake

    return install


@pytest.mark.slow
def test_a_run_sends_numbers_and_pictures_to_wandb_and_resumes_the_same_run_there(tiny, wandb, tmp_path):
    fake, workdir = wandb(), tmp_path / "run"
    for steps in (10, 20):
        assert train.main(tiny(train=dict(steps=steps, writers="wandb")), str(workdir)) == 0
    first, second = fake.begun
    assert first["id"] == second["id"]
    assert (first["project"], first["name"], first["resume"]) == ("tinygen", "run", "allow")
    assert first["config"]["optim.lr"] == 2e-3
    assert fake.finished == 2

    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    sent = {step: values for step, values in fake.logged if "loss" in values}
    assert sent == {line["step"]: {key: value for key, value in line.items() if key != "step"} for line in lines}
    pictures = {step for step, values in fake.logged if "samples" in values}
    assert pictures == {int(path.stem) for path in (workdir / "samples").iterdir()}
    steps = [step for step, _ in fake.logged]
    assert steps == sorted(steps)  # wandb drops what comes late


def test_a_new_workdir_is_another_run(wandb, tmp_path):
    fake = wandb()
    for name in "ab":
        (tmp_path / name).mkdir()
        writers.extra_writers("wandb", folder(tmp_path / name), {})
    assert fake.begun[0]["id"] != fake.begun[1]["id"]


def test_pictures_are_sent_one_by_one(wandb, tmp_path):
    fake = wandb()
    writer = writers.extra_writers("wandb", folder(tmp_path), {})["wandb"]
    writer.write_images(3, {"grid": np.zeros((2, 4, 5, 3), np.uint8)})
    assert fake.logged == [(3, {"grid": [("image", (4, 5, 3), "uint8")] * 2})]


def test_where_wandb_cannot_begin_the_user_is_told_why_and_what_to_do(wandb, tmp_path):
    wandb(failing="api_key not configured\n(no-tty). call wandb.login(key=[your_api_key])")
    with pytest.raises(UserError, match=r"wandb: api_key not configured .*\nRun 'wandb login', or set WANDB_MODE=offline"):
        writers.extra_writers("wandb", folder(tmp_path), {})


def test_a_writer_that_is_unknown_or_not_installed_is_refused_before_anything_else(tiny, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="did you mean 'wandb'"):
        train.main(tiny(train=dict(writers="wanbd")), str(tmp_path / "run"))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"pip install 'tinygen\[wandb\]'"):
        train.main(tiny(train=dict(writers="wandb")), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_no_writer_is_the_default(tmp_path):
    assert writers.extra_writers("", folder(tmp_path), {}) == {}


def test_a_writer_that_fails_is_left_alone_for_a_minute_and_then_tried_again(monkeypatch):
    now, told, written = [100.0], [], []
    monkeypatch.setattr(writers, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    class Failing:
        error = ConnectionError("gone")

        def write_scalars(self, step, scalars):
            if self.error:
                raise self.error
            written.append(step)

        def close(self):
            written.append("closed")

    failing = Failing()
    steady = writers.Steady("service", failing, lambda name, error: told.append((name, error)))
    steady.write_scalars(1, {})
    failing.error = None
    steady.write_scalars(2, {})
    now[0] += 61
    steady.write_scalars(3, {})
    steady.close()
    assert (written, told[:2]) == ([3, "closed"], [("service", Failing.error), ("service", None)])


def test_texts_are_sent_as_a_table_a_row_each(wandb, tmp_path):
    fake = wandb()
    writer = writers.extra_writers("wandb", folder(tmp_path), {})["wandb"]
    writers.Steady("wandb", writer, lambda name, error: None).write_texts(3, {"samples": ["to be", "or not"]})
    assert fake.logged == [(3, {"samples": ("table", ["text"], [["to be"], ["or not"]])})]


def test_the_log_has_the_beginning_of_the_first_text_in_one_line():
    assert Text(Vocabulary(kind="bytes")).glimpse(["to be\n\nor not", "that is"]) == "to be or not"
    assert len(Text(Vocabulary(kind="bytes")).glimpse(["word " * 100])) <= GLIMPSE
    assert Text(Vocabulary(kind="bytes")).glimpse([]) == ""
