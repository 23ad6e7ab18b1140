"""A launcher with a stand-in for tinygen."""

import subprocess
import time
from pathlib import Path

import pytest

LAUNCHERS = Path(__file__).parents[2] / "scripts" / "launch"
# A stand-in for tinygen: says what it was told, then does as its process is told in $PLAN, such as "wait fail".
STAND_IN = """#!/usr/bin/env bash
trap 'echo got INT; exit 130' INT
for last; do :; done
echo "told: $*"
read -ra plan <<<"$PLAN"
deed=${plan[${last##*,}]}
[ "$deed" = stubborn ] && trap 'echo ignored TERM' TERM || trap 'echo got TERM; exit 143' TERM
touch "$MARKS/${last##*,}"
case $deed in
  fail) until [ -e "$MARKS/0" ]; do sleep 0.02; done; exit 7 ;;
  wait | stubborn) while [ $SECONDS -lt 60 ]; do sleep 0.02; done ;;
esac
"""


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """launch(script, *arguments): the finished process of a launcher, whose tinygen is a stand-in; `launch.begin` gives one that runs.

    `launch.until(condition)` waits for what such a process does.
    """
    program = tmp_path / "stand in"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "TINYGEN": program,
        "MARKS": tmp_path,
        "PLAN": "end end end",
        "TINYGEN_BACKGROUND": tmp_path / "background",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("XLA_FLAGS")
    begun = []

    def until(condition):
        deadline = time.monotonic() + 30
        while not (value := condition()):
            assert time.monotonic() < deadline, "nothing came of it within 30 s"
            time.sleep(0.01)
        return value

    def begin(script, *arguments):
        words = [LAUNCHERS / script, *map(str, arguments)]
        begun.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True))
        return begun[-1]

    def run(script, *arguments):
        process = begin(script, *arguments)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    run.begin, run.program, run.until = begin, str(program), until
    yield run
    for process in begun:
        process.kill()
        process.communicate()
