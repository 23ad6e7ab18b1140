import pytest

from tinygen.errors import UserError, duration, unknown

MANY = [f"key{number:02}" for number in range(40)]


@pytest.mark.parametrize(
    ("name", "known", "message"),
    [
        ("hen", ["euler", "heun"], "unknown sampler 'hen': did you mean 'heun'? (known: euler, heun)"),
        ("rk4", ["heun", "euler"], "unknown sampler 'rk4'; known: euler, heun"),
        ("", ["euler"], "unknown sampler ''; known: euler"),
        ("heun", [], "unknown sampler 'heun'; known: none"),
        ("kye07", MANY, "unknown sampler 'kye07': did you mean 'key07'?"),
        ("zzz", MANY, f"unknown sampler 'zzz'; known: {', '.join(MANY[:24])}, ..."),
    ],
)
def test_an_unknown_name_is_told_its_nearest_match_or_what_there_is(name, known, message):
    error = unknown("sampler", name, known)
    assert type(error) is UserError
    assert str(error) == message


def test_names_need_not_be_strings():
    assert "known: 1, 2" in str(unknown("size", 7, [2, 1]))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.123, "0.12 s"), (0, "0 s"), (99, "99 s"), (99.6, "2 min"), (600, "10 min"), (9000, "2.5 h")]
)
def test_a_duration_is_written_in_its_unit(seconds, said):
    assert duration(seconds) == said
