"""An address that no run can lie at is refused in one line that says which can."""

import sys
from pathlib import Path

import pytest

from tinygen.checkpoints import store
from tinygen.cli import main as cli
from tinygen.errors import UserError
from tinygen.workdir.files import check_place

RECIPE = f"--config={Path(__file__).parents[2] / 'configs' / 'dit_digits8.py'}:smoke"
SUPPORTED = "is not supported; give a path on this machine, or gs://BUCKET/PATH"


@pytest.mark.parametrize("scheme", ["http", "https", "s3", "ftp", "file", "hf", "GS"])
@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (["train", RECIPE], "--workdir"),
        (["train", RECIPE, "--describe"], "--workdir"),
        (["check", RECIPE], "--workdir"),
        (["sample"], "--ckpt"),
        (["sample", "--ckpt=run"], "--out"),
        (["eval"], "--ckpt"),
        (["eval-fid", "--ref=train"], "--ckpt"),
        (["eval-fid"], "--compare"),
        (["report"], "--workdir"),
        (["report", "--workdir=run"], "--out"),
    ],
)
def test_an_address_of_another_kind_is_refused_in_one_line(capsys, monkeypatch, tmp_path, command, flag, scheme):
    monkeypatch.chdir(tmp_path)
    path = f"{scheme}://host/run"
    assert cli.main([*command, f"{flag}={path}"]) == 2
    assert capsys.readouterr().err == f"tinygen: {flag}={path}: {scheme}:// {SUPPORTED}\n"
    assert not [*tmp_path.iterdir()]


def test_one_of_several_runs_that_a_report_cannot_read_is_named(capsys):
    assert cli.main(["report", "--workdir=runs/a,s3://b/c"]) == 2
    assert "--workdir=s3://b/c: s3:// is not supported" in capsys.readouterr().err


def test_an_address_in_a_configuration_is_refused_too():
    with pytest.raises(UserError, match=r"config\.init\.ckpt=s3://a/b: s3:// is not supported"):
        store.find("s3://a/b", option="config.init.ckpt")


@pytest.mark.parametrize("command", [["sample", "--ckpt=gs://bucket/run"], ["report", "--workdir=gs://bucket/run"]])
def test_a_bucket_without_googles_client_is_refused_with_the_command_that_installs_it(capsys, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    assert cli.main(command) == 2
    assert f"{command[1]}: Google's client for buckets is not installed: pip install 'tinygen[gcs]'" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["run", "/data/run", "a:b/run", "./http:/x", Path("runs/x")])
def test_a_path_on_this_machine_passes(path):
    check_place(path, "--workdir")
