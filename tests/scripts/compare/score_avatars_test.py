"""score_avatars.py: the rule is right on real and on painted faces, and reads what prompts request."""

import io
import itertools
import json

import numpy as np
import pytest
import score_avatars
from PIL import Image

from tinygen.data.avatars import drawing
from tinygen.data.avatars.styles import BACKGROUND, HAIR, SKIN, STYLES
from tinygen.data.images import pixels

NUM = 36
NAMES = drawing.attributes("micah")


@pytest.fixture(scope="module")
def faces():
    """Faces as they are drawn, uint8 [36, 64, 64, 3], and their captions."""
    drawn = [drawing.draw("micah", number) for number in range(NUM)]
    return np.stack([np.asarray(Image.open(io.BytesIO(face.png))) for face in drawn]), [face.caption for face in drawn]


def shrunk(images, size):
    options = dict(size=(size, size), fit="crop", channels=3, background="white")
    return np.stack([pixels.fitted(Image.fromarray(image), **options) for image in images])


def color(value):
    return np.array(list(bytes.fromhex(value[1:])), np.uint8)


def painted(*, background="blue", hair="black", skin="tan", frame="", size=64):
    """A face in four strokes [1, size, size, 3]; no hair shows the skin. A frame has one side below each eye."""
    unit = size // 32
    image = np.empty((32, 32, 3), np.uint8)
    image[:] = color(BACKGROUND[background])
    image[4:28, 8:24] = color(SKIN[skin])
    image[2:8, 6:26] = color(HAIR[hair] if hair else SKIN[skin])
    image = image.repeat(unit, 0).repeat(unit, 1)
    if frame:
        image[13 * unit, 9 * unit : 23 * unit] = color(frame)
    return image[None]


def write(folder, images, prompts):
    rows = [{"file": f"{number:05d}.png", "prompt": prompt} for number, prompt in enumerate(prompts)]
    for row, image in zip(rows, images, strict=True):
        Image.fromarray(image).save(folder / row["file"])
    (folder / "samples.json").write_text(json.dumps({"seed": 0, "samples": rows}))


def value(attribute, labels):
    return NAMES[attribute][labels[attribute]]


@pytest.mark.parametrize("size", [64, 32])
def test_real_faces_are_read_as_their_captions_say(faces, size):
    images, captions = faces
    rows = score_avatars.score(shrunk(images, size), captions)
    assert {attribute: (row.accuracy, row.confused) for attribute, row in rows.items()} == dict.fromkeys(score_avatars.ATTRIBUTES, (1, []))
    assert rows["glasses"].num == rows["skin"].num == NUM
    assert rows["hair"].num < NUM  # some are bald, some wear turbans


@pytest.mark.parametrize("move", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_real_faces_moved_by_a_pixel_are_read_as_well(faces, move):
    images, captions = faces
    rows = score_avatars.score(np.roll(images, move, (1, 2)), captions)
    assert all(row.accuracy == 1 for row in rows.values())


def test_captions_of_other_faces_are_right_by_chance_only(faces):
    """So the rule answers from the pixels."""
    images, captions = faces
    rows = score_avatars.score(images, captions[1:] + captions[:1])
    assert all(row.accuracy < 0.7 for row in rows.values())


def test_a_bald_crown_reads_as_no_hair(faces):
    images, captions = faces
    bald = [read for read, caption in zip(score_avatars.read(images)["hair"], captions, strict=True) if "no hair" in caption]
    assert set(bald) == {"none"}


@pytest.mark.parametrize("size", [64, 32])
def test_every_colour_of_a_painted_face_is_read(size):
    for background, hair, skin in itertools.product(BACKGROUND, HAIR, SKIN):
        read = score_avatars.read(painted(background=background, hair=hair, skin=skin, size=size))
        assert read == {"background": [background], "hair": [hair], "skin": [skin], "glasses": ["no"]}
    assert score_avatars.read(painted(hair="", size=size))["hair"] == ["none"]


@pytest.mark.parametrize("size", [64, 32])
@pytest.mark.parametrize("skin", SKIN)
def test_frames_of_any_colour_are_glasses_and_a_black_line_or_a_shadow_is_not(skin, size):
    frames = next(part for part in STYLES["micah"].parts if part.name == "glasses").palette
    for frame in frames.values():
        assert score_avatars.read(painted(skin=skin, frame=frame, size=size))["glasses"] == ["yes"]
    darker = "#" + bytes(color(SKIN[skin]) // 2).hex()
    for line in ("", "#000000", darker):
        assert score_avatars.read(painted(skin=skin, frame=line, size=size))["glasses"] == ["no"]


def test_every_colour_has_a_nearest_one():
    """No colour is so far from a palette that all its weights underflow to 0."""
    grid = np.array(list(itertools.product(range(0, 256, 51), repeat=3)), np.float64)
    plain = np.broadcast_to(grid[:, None, None], (len(grid), 32, 32, 3))
    with np.errstate(all="raise", under="ignore"):
        score_avatars.read(plain)
    for palette in (BACKGROUND, HAIR, SKIN):
        distances = np.stack([np.linalg.norm(grid - color(each), axis=-1) for each in palette.values()], -1)
        weights = score_avatars._closeness(grid[None], palette)[0]
        nearest = weights[np.arange(len(grid)), distances.argmin(-1)]
        assert np.all(nearest > 0)
        assert np.all(nearest == weights.max(-1))


def test_what_a_caption_asks_for_is_what_was_chosen():
    for number in range(600):
        _, labels, caption = drawing.choose("micah", number)
        wanted = {"background": value("background_color", labels), "skin": value("skin_color", labels)}
        wanted["glasses"] = "yes" if labels["glasses"] else "no"
        if labels["hair"]:
            wanted["hair"] = value("hair_color", labels)
        assert score_avatars.requested(caption) == wanted, caption


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("blue background", {"background": "blue", "glasses": "no"}),
        ("Dark  brown skin", {"skin": "dark brown", "glasses": "no"}),
        ("a person with black hair and glasses", {"hair": "black", "glasses": "yes"}),
        ("a person with no glasses", {"glasses": "no"}),
        ("without any glasses", {"glasses": "no"}),
        ("no hair, round red glasses", {"glasses": "yes"}),
        ("a red turban on a pink background", {"background": "pink", "glasses": "no"}),
        ("a black beard, in a brown shirt", {}),
        ("sunglasses", {}),
        ("", {}),
    ],
)
def test_what_a_prompt_does_not_name_is_not_asked_for(prompt, wanted):
    assert score_avatars.requested(prompt) == wanted


def test_a_row_counts_what_was_asked_and_what_was_confused():
    images = np.concatenate(
        [painted(background="blue"), painted(background="blue"), painted(background="green"), painted(background="pink")]
    )
    row = score_avatars.score(images, ["blue background", "green background", "green background", "tan skin"])["background"]
    assert (row.num, row.accuracy, row.chance, row.confused) == (3, 2 / 3, 2 / 3, [("green", "blue", 1)])
    # Wilson's interval of 2 in 3 by its formula, z = 1.96: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)
    assert row.interval == pytest.approx((0.2077, 0.9385), abs=1e-3)


def test_samples_are_judged_by_their_prompts(tmp_path, capsys):
    images = np.concatenate([painted(hair="red"), painted(hair="green", frame="#d62828")])
    write(tmp_path, images, ["short red hair", "a blond bob and round red glasses"])
    assert score_avatars.main([f"--samples={tmp_path}", f"--json={tmp_path / 'rows.json'}"]) == 0
    out = capsys.readouterr().out
    assert "blond -> green 1" in out
    assert not any(attribute in out for attribute in ("background", "skin"))
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {attribute: row["accuracy"] for attribute, row in rows.items()} == {"hair": 0.5, "glasses": 1}


def test_held_out_faces_are_read_at_both_sizes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(score_avatars, "FACES", 60)
    for size in (64, 32):
        assert score_avatars.main(["--real", f"--size={size}", f"--data-dir={tmp_path}"]) == 0
        out = capsys.readouterr().out
        assert f"3 held-out real faces, {size}x{size}" in out
        assert out.count(" 1.000 ") >= 4


def test_prompts_are_captions_with_uniform_colours_and_glasses_in_every_other(tmp_path):
    num = 720
    assert score_avatars.main([f"--prompts-out={tmp_path / 'prompts.txt'}", f"--num={num}"]) == 0
    wanted = [score_avatars.requested(line) for line in (tmp_path / "prompts.txt").read_text().splitlines()]
    assert len(wanted) == num
    assert {tuple(sorted(want)) for want in wanted} == {tuple(sorted(score_avatars.ATTRIBUTES))}
    assert [want["glasses"] for want in wanted] == ["yes", "no"] * (num // 2)
    for attribute, palette in (("background", BACKGROUND), ("hair", HAIR), ("skin", SKIN)):
        counts = np.array([sum(want[attribute] == each for want in wanted) for each in palette])
        expected = num / len(palette)
        assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected)), attribute


def test_a_seed_gives_the_same_prompts_and_another_seed_others(tmp_path):
    written = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        score_avatars.main([f"--prompts-out={tmp_path / name}", "--num=5", f"--seed={seed}"])
        written.append((tmp_path / name).read_text())
    assert written[0] == written[1] != written[2]


def mistake(capsys, *args):
    assert score_avatars.main(list(args)) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_a_folder_without_samples_json_is_one_line(tmp_path, capsys):
    assert "no samples.json" in mistake(capsys, f"--samples={tmp_path}")
    assert "no samples.json" in mistake(capsys, f"--samples={tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"images": []}', '{"samples": []}', '{"samples": [{"prompt": "x"}]}', '{"samples": ["0.png"]}']
)
def test_a_broken_samples_json_is_one_line(tmp_path, capsys, text):
    (tmp_path / "samples.json").write_text(text)
    assert "samples" in mistake(capsys, f"--samples={tmp_path}")


@pytest.mark.parametrize("prompt", [None, 3])
def test_a_sample_without_a_prompt_is_one_line_that_names_it(tmp_path, capsys, prompt):
    write(tmp_path, np.concatenate([painted(), painted()]), ["red hair", prompt])
    assert "00001.png" in mistake(capsys, f"--samples={tmp_path}")


def test_samples_that_were_asked_for_nothing_are_left_out_and_nothing_else_is_one_line(tmp_path, capsys):
    images = np.concatenate([painted(), painted()])
    write(tmp_path, images, ["a smiling person", "black hair"])
    assert score_avatars.main([f"--samples={tmp_path}", f"--json={tmp_path / 'rows.json'}"]) == 0
    assert {row["num"] for row in json.loads((tmp_path / "rows.json").read_text()).values()} == {1}
    write(tmp_path, images, ["a smiling person", ""])
    assert "no prompt names" in mistake(capsys, f"--samples={tmp_path}")


def test_a_missing_or_damaged_image_is_one_line(tmp_path, capsys):
    write(tmp_path, painted(), ["red hair"])
    (tmp_path / "00000.png").write_bytes(b"\x89PNG\r\n")
    assert "00000.png" in mistake(capsys, f"--samples={tmp_path}")
    (tmp_path / "00000.png").unlink()
    assert "00000.png" in mistake(capsys, f"--samples={tmp_path}")


def test_images_of_another_size_are_one_line_with_both_sizes(tmp_path, capsys):
    write(tmp_path, painted(size=32), ["red hair"])
    message = mistake(capsys, f"--samples={tmp_path}")
    assert "32x32" in message
    assert "64x64" in message
    assert score_avatars.main([f"--samples={tmp_path}", "--size=32"]) == 0


def test_an_option_that_cannot_be_followed_is_one_line(tmp_path, capsys):
    assert "--num=0" in mistake(capsys, f"--prompts-out={tmp_path / 'p'}", "--num=0")
    assert "--prompts-out" in mistake(capsys, f"--prompts-out={tmp_path / 'nowhere' / 'p'}")
    write(tmp_path, painted(), ["red hair"])
    assert "--json" in mistake(capsys, f"--samples={tmp_path}", f"--json={tmp_path / 'nowhere' / 'rows.json'}")
