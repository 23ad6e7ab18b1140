"""The shape of the code, read from its syntax trees: what may import what, and who sees a configuration."""

import ast
import graphlib
import re
import tomllib
from pathlib import Path

import pytest
from rooms import ROOMS, room

from tinygen import config, media
from tinygen.config import schema
from tinygen.data.codec import CONDITIONS
from tinygen.data.domain import Domain, Encoded, Latents, Levels, Tokens
from tinygen.samplers import table

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tinygen"
RECIPES = sorted((ROOT / "configs").glob("*.py"))

SEE_A_CONFIG = {"cli", "config", "build", "training", "evaluation", "sampling", "pretrained", "checkpoints"}
SEE_A_CONFIG |= {"train", "check", "sample", "evaluate", "eval_fid", "report"}
# What others may read of config/: the choices of a key, and the form of another
FORMS = {("data.images.pixels", "config.data"), ("distributed.processes", "config.cluster")}


def name_of(path):
    """'models.microdit' for tinygen/models/microdit.py, 'data' for tinygen/data/__init__.py, '' for the package's own."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree):
    """The modules of tinygen that a module imports anywhere, inside functions too, and the other ones under their full names."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = {name for name in inner if name.removeprefix("tinygen.") in TREES}
            found |= modules or {node.module}
    return {name.removeprefix("tinygen.") for name in found if name != "tinygen"}


IMPORTS = {name: imports(tree) for name, tree in TREES.items() if name}
OURS = {name: {each for each in found if each in TREES} for name, found in IMPORTS.items()}


def rooms_that_import(module):
    return {room(name) for name, found in OURS.items() if module in found} - {room(module)}


def level(name):
    return next((depth for depth, rooms in enumerate(ROOMS) if room(name) in rooms), None)


def test_the_trees_were_read():
    assert {"cli.main", "train", "models.microdit", "data.builtin", "objectives.flow"} <= IMPORTS.keys()
    assert {"optim", "config", "train_step", "objectives.flow"} <= OURS["build"]
    assert "config" in OURS["cli.main"]  # inside a function


def test_the_top_level_holds_ten_modules_at_most():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= 10, sorted(modules)


def test_there_are_twelve_levels_at_most_and_every_room_has_one():
    assert len(ROOMS) <= 12
    placed = [name for rooms in ROOMS for name in rooms]
    assert sorted(placed) == sorted({room(name) for name in IMPORTS})


@pytest.mark.parametrize("name", IMPORTS)
def test_imports_point_down_only(name):
    assert level(name) is not None, f"{name} is in a room that has no place in scripts/docs/rooms.py"
    for other in OURS[name]:
        assert level(other) > level(name) or room(other) == room(name), f"{name} imports {other}"


def test_imports_go_round_in_no_circle():
    assert set(graphlib.TopologicalSorter(OURS).static_order()) >= OURS.keys()


def test_only_a_run_and_its_dry_run_keep_a_record_and_only_commands_prepare_the_process():
    assert rooms_that_import("workdir.logger") == {"training", "check"}
    assert rooms_that_import("system.runtime") <= {"train", "training", "check", "cli"}
    assert rooms_that_import("workdir.lock") == {"train"}
    assert rooms_that_import("system.compilation_cache") == {"cli"}


def test_models_objectives_and_data_do_not_know_each_other_and_only_objectives_know_samplers():
    packages = {"models", "objectives", "data", "samplers"}
    for name, found in OURS.items():
        if room(name) in packages:
            known = {room(name)} | ({"samplers"} if room(name) == "objectives" else set())
            assert not {other for other in found if room(other) in packages - known}, name


@pytest.mark.parametrize("name", sorted(name for name in IMPORTS if room(name) not in SEE_A_CONFIG))
def test_models_objectives_data_and_what_lies_below_see_no_configuration(name):
    assert {(name, each) for each in IMPORTS[name] if each.split(".")[0] in ("config", "ml_collections")} <= FORMS
    variables = {node.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Name)}
    arguments = {node.arg for node in ast.walk(TREES[name]) if isinstance(node, ast.arg)}
    assert "config" not in variables | arguments


@pytest.mark.parametrize("name", IMPORTS)
def test_nothing_imports_scripts_recipes_or_tests(name):
    assert not {each for each in IMPORTS[name] if each.split(".")[0] in ("scripts", "configs", "tests", "conftest", "pytest")}


PARTS = (media.Medium, media.Array, *media.MEDIA.values(), Domain, Encoded, Latents, Levels, Tokens, *CONDITIONS)
MEDIA_MAY = {"data", "media"}  # rooms that know which media, domains and conditions there are


@pytest.mark.parametrize("name", sorted(name for name in TREES if room(name) not in MEDIA_MAY))
def test_nobody_asks_what_the_data_or_the_objective_are(name):
    """Media, conditions and objectives answer by methods: a new one touches none of those who call them."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute) and node.attr in ("kind", "vocabulary"):
            assert ast.unparse(node.value).rpartition(".")[2] in ("self", "dtype"), f"{name}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("hasattr", "getattr"):
            assert not ast.unparse(node.args[0]).endswith("objective"), f"{name}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            asked = set(re.findall(r"\w+", ast.unparse(node.args[1]).replace("jax.Array", ""))) & {each.__name__ for each in PARTS}
            assert not asked or name == "pretrained.latents", f"{name}: {ast.unparse(node)}"


def test_a_sampler_s_name_is_a_choice_of_the_configuration():
    assert set(config.objectives.SAMPLERS) == set(table.SAMPLERS)


def uses(tree, name):
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def test_flags_stop_at_the_command_line():
    flagged = {name for name, found in IMPORTS.items() if {"absl", "absl.flags"} & found and uses(TREES[name], "flags")}
    assert "cli.flags" in flagged
    assert {room(name) for name in flagged} == {"cli"}


@pytest.mark.parametrize("name", sorted(TREES.keys() - {"system.terminal"}))
def test_what_is_printed_goes_through_the_module_that_takes_terminal_commands_out(name):
    calls = [node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)]
    assert not [each for each in calls if isinstance(each, ast.Name) and each.id == "print"]
    assert "stderr.write" not in {ast.unparse(each).removeprefix("sys.") for each in calls}


def called(tree):
    """Names of all functions that are called: 'einsum' for jnp.einsum(...), '@' for the operator."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", ""))
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            yield "@"


PRODUCTS = {"@", "dot", "vdot", "matmul", "einsum", "tensordot", "dot_general", "dot_product_attention"}
HOMES = {"nn.matmul": ("product", "_rounded"), "nn.attention": ("cudnn",)}  # the latter's are fused, and not JAX's own


def test_matrices_are_multiplied_in_one_place_only():
    for name in (name for name in TREES if room(name) in ("nn", "models", "objectives", "samplers", "train_step")):
        functions = {node.name: node for node in ast.walk(TREES[name]) if isinstance(node, ast.FunctionDef)}
        home = [each for function in HOMES.get(name, ()) for each in called(functions[function]) if each in PRODUCTS]
        assert sorted(each for each in called(TREES[name]) if each in PRODUCTS) == sorted(home), name
        assert name not in HOMES or home


def test_random_keys_are_made_in_one_module_only():
    """One made elsewhere would be baked into a compiled step: the same noise every time."""
    makers = re.compile(r"(jax\.)?random\.(key|PRNGKey)$|PRNGKey$")
    calls = {name: [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)] for name, tree in TREES.items()}
    assert {name for name, functions in calls.items() if any(map(makers.match, functions))} == {"rng"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=name_of)
def test_no_file_is_longer_than_300_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 300


def test_a_test_lies_where_what_it_tests_does_or_among_those_of_whole_runs_or_scripts():
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("*_test.py")}
    elsewhere = {folder for folder in folders if not ((PACKAGE / folder).is_dir() or (PACKAGE / f"{folder}.py").exists())}
    assert {folder.parts[0] for folder in elsewhere} <= {"runs", "scripts"}


def test_every_package_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("*.py")}
    assert set(listed) == found | {"tinygen.configs"}  # which are configs/


def test_there_are_recipes():
    assert {"dit_pixel_faces", "dit_digits", "dit_digits8"} <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_has_a_smoke_variant_of_the_same_kind_with_few_steps(path):
    whole, smoke = config.load(str(path)), config.load(f"{path}:smoke")
    config.check(whole)
    config.check(smoke)
    assert [smoke[section].name for section in schema.TABLES] == [whole[section].name for section in schema.TABLES]
    assert smoke.train.steps <= 50 < whole.train.steps


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_begins_with_its_own_command(path):
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    assert re.search(rf"tinygen train --config={re.escape(path.stem)}(?![\w.])", said)


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
NAMING = [
    *PAGES,
    *RECIPES,
    *(ROOT / "scripts").rglob("*.py"),
    *PACKAGE.rglob("*.py"),
]


def test_recipes_that_pages_recipes_and_messages_name_exist():
    named = {name: path for path in NAMING for name in re.findall(r"--config=([a-z]\w+)(?![\w.{])", path.read_text("utf-8"))}
    assert {"dit_digits", "gpt_shakespeare"} <= named.keys()
    assert not named.keys() - {path.stem for path in RECIPES}, named


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_names_and_links_only_files_that_exist(page):
    text = re.sub(r"```python.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)  # examples of files that are yet to be written
    named = set(re.findall(r"(?<![\w/.-])((?:configs|scripts|docs|tinygen|tests)/[\w/.-]+\.(?:py|md|png|gif|sh))", text))
    linked = set(re.findall(r"\]\((?!https?:)([^)#]+)", text))
    named = {name for name in named if "NAME" not in name}
    assert not {name for name in named if not (ROOT / name).exists()} | {link for link in linked if not (page.parent / link).exists()}
