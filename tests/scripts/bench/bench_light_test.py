"""bench.py with tiny models on a machine with few packages: one process runs all commands, the tests read its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[3] / "scripts" / "bench"
OURS = {"jax", "flax", "optax", "numpy", "absl", "ml_collections"}
THEIRS = {
    *("jaxlib", "ml_dtypes", "opt_einsum", "scipy"),  # JAX's own
    *("msgpack", "rich", "treescope", "typing_extensions"),  # Flax's own, which `import flax.nnx` does not do without
    "yaml",  # Flax's and ml_collections'
}
# Python runs it in every process: what is installed and not allowed is as if it were not there.
BLOCK = """
import os, sys, sysconfig
allowed, sites = set(os.environ["ALLOWED"].split(",")), tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))

class Allowed:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        spec = self.finder.find_spec(name, path, target)
        places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
        strange = name.partition(".")[0] not in allowed and any(place.startswith(sites) for place in places)
        return None if strange else spec

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Allowed, sys.meta_path)
"""
MODEL = ["--width=16", "--depth=1", "--heads=2", "--shape=8,8,3", "--batch_size=8"]
COMMANDS = {
    "products": ["--seconds=0.01"],
    "step": [*MODEL, "--rounds=2", "--product_seconds=0.01", "--set=precision=float32", "--against", "precision=bfloat16_activations"],
    "sampling": [*MODEL, "--rounds=2", "--product_seconds=0", "--nfe=3"],
    "compile": MODEL,
}
RUN = """
import json, sys, bench
bench.machine.busy_share = lambda: 0.0
for name, arguments in json.loads(sys.argv[1]).items():
    assert bench.main([name, *arguments, f"--json={name}.json"]) == 0
strangers = [name for name in ("clu", "orbax", "etils", "grain", "PIL", "tensorflow", "matplotlib", "torch") if name in sys.modules]
assert not strangers, strangers
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(name): (the result, the table) of a command; every one of them made where there are few packages."""
    folder = tmp_path_factory.mktemp("light")
    (folder / "sitecustomize.py").write_text(BLOCK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(SCRIPTS)]), "ALLOWED": ",".join(OURS | THEIRS)}
    command = [sys.executable, "-c", RUN, json.dumps(COMMANDS)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return lambda name: (json.loads((folder / f"{name}.json").read_text()), done.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_runs_whole_with_few_packages_and_says_what_its_numbers_depend_on(made, name):
    result, _ = made(name)
    assert result["what"] == name
    assert result["machine"]["versions"].keys() == {"jax", "jaxlib", "flax", "optax", "numpy"}
    assert result["machine"]["devices"].startswith("8 x ")
    assert result["busy_before"] == 0.0


def test_a_step_of_ours_and_one_with_other_settings_are_timed_in_turns(made):
    (run,) = made("step")[0]["runs"]
    first, other = run["contestants"]
    assert [first["name"], other["name"]] == ["tinygen", "precision=bfloat16_activations"]
    assert (first["operands"], other["operands"]) == ("float32", "bfloat16_activations")
    assert first["parameters"] == other["parameters"] > 10_000
    assert len(first["seconds"]) == len(other["seconds"]) == 2
    assert other["ratio"] == pytest.approx(sum(b / a for a, b in zip(first["seconds"], other["seconds"], strict=True)) / 2)
    # Products of 8 images of 16 patches in 16 features, forward and back: six operations a weight and token, those of attention besides
    tokens, weights = 8 * 16, 4 * 16 * 16 + 3 * 16 * 64 + 12 * 16 + 16 * 12
    assert first["flops"] > 6 * tokens * weights
    assert first["flops"] < 1.5 * 6 * tokens * weights
    assert first["flops_per_s"] == pytest.approx(first["flops"] / (sum(first["seconds"]) / 2))
    assert set(first["compile_s"]) == {"trace", "lower", "compile"}


def test_the_share_is_of_the_best_product_of_the_same_operands(made):
    result = made("step")[0]
    for row in result["runs"][0]["contestants"]:
        kind = row["operands"].removesuffix("_activations")
        own = [each for each in result["products"]["before"] + result["products"]["after"] if each["operands"] == kind]
        assert row["share"] == pytest.approx(row["flops_per_s"] / max(max(each["flops_per_s"]) for each in own))


def test_sampling_counts_every_evaluation_and_measures_no_product_where_none_is_wanted(made):
    step, sampling = made("step")[0], made("sampling")[0]
    (row,) = sampling["runs"][0]["contestants"]
    assert sampling["products"] == {"before": [], "after": [], "best": {}}
    assert row["share"] is None
    assert row["flops"] == pytest.approx(3 * step["runs"][0]["contestants"][0]["flops"] / 3, rel=0.05)  # three times forward; and back
    assert "objective.nfe=3" in sampling["settings"]


def test_products_are_measured_of_both_kinds_of_operands(made):
    result, shown = made("products")
    assert {each["operands"] for each in result["products"]} == {"float32", "bfloat16"}
    assert all(min(each["flops_per_s"]) > 0 for each in result["products"])
    assert "best float32: " in shown


def test_compilation_is_told_apart_in_a_cold_and_a_warm_process(made):
    result, shown = made("compile")
    (run,) = result["runs"]
    assert set(run["cold"]) == set(run["warm"]) == {"trace", "lower", "compile"}
    assert min(*run["cold"].values(), *run["warm"].values()) > 0
    assert run["cache_bytes"] > 0
    assert sum(line.startswith(run["name"]) for line in shown.splitlines()) == 2
