"""docs/code.md matches the docstrings of the modules."""

import code_map


def test_the_map_of_the_code_is_up_to_date():
    same = code_map.PAGE.read_text("utf-8") == code_map.page()
    assert same, "docs/code.md differs from the code: run `python scripts/docs/code_map.py` and commit the page"


def test_every_module_is_on_the_map_once():
    modules = sorted(path for path in code_map.PACKAGE.rglob("*.py") if path != code_map.PACKAGE / "__init__.py")
    assert sorted(path for rooms in code_map.ROOMS for room in rooms for path in code_map.files(room)) == modules
