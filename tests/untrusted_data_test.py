"""Pictures, their descriptions and prepared sets that others made are only read: nothing in them runs, and what is absurd is left out or
refused in a line, before it takes memory or time."""

import json
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tinygen.data import tfds_trust
from tinygen.data.folder import folder
from tinygen.errors import UserError

DEEP = '{"a":' * 100_000
HUGE = "9" * 4_000


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def tiff(width, height):
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8), (277, 3, 1, 1)]
    tags += [(278, 4, 1, height), (279, 4, 1, 2**31)]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)


def vp8l(width, height):
    body = b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14) + bytes(20)
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBPVP8L" + struct.pack("<I", len(body)) + body


BOMBS = {
    "square.png": png(60_000, 60_000),
    "long.png": png(2**31 - 1, 1),
    "wide.jpg": b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 17, 8, 65_535, 65_535, 3) + bytes([1, 17, 0, 2, 17, 0, 3, 17, 0]) + b"\xff\xd9",
    "canvas.gif": b"GIF89a"
    + struct.pack("<HH", 65_535, 65_535)
    + bytes(3)
    + b","
    + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0)
    + b"\2\0;",
    "first.webp": vp8l(16_383, 16_383),
    "pages.tiff": tiff(10**6, 10**6),
    "lines.ppm": b"P6 100000 100000 255\n" + bytes(30),
    "info.bmp": b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 10**6, 10**6, 1, 24, 0, 0, 0, 0, 0, 0),
    "text.png": png(20, 20)[:33] + chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(2**27))) + png(20, 20)[33:],
    "program.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99 99\n",  # which PIL would give to another program
}


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "pictures"
    place.mkdir()
    for index in range(2):
        noise = np.random.default_rng(index).integers(0, 256, (20, 20, 3), np.uint8)
        Image.fromarray(noise).save(place / f"{index}.png")
    return place


def source(path, label=""):
    return folder(
        path=str(path), size=8, fit="crop", channels=3, background="white", min_side=1, label=label, validation=0.5, flip=False
    )  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_picture_whose_header_promises_too_much_is_left_out_before_it_takes_memory(name, pictures, confined):
    (pictures / name).write_bytes(BOMBS[name])
    with confined():
        found = source(pictures)
    assert sum(map(len, found.splits.values())) == 2
    assert any(f"1 of 3 files left out: {name!r}" in line for line in found.summary)


def test_names_outside_of_the_folder_are_those_of_no_picture(pictures):
    outside = [str(pictures.parent / "cache"), "../pictures/../secret.png", "/etc/passwd", "a/../../b", "\0", "x" * 10**5]
    (pictures.parent / "secret.png").write_bytes((pictures / "0.png").read_bytes())
    lines = [json.dumps({"file_name": name, "text": "told"}) for name in outside]
    (pictures / "metadata.jsonl").write_text("\n".join(lines))
    found = source(pictures)
    assert any(
        line.startswith(f"{len(outside)} entries of metadata.jsonl files are about images that are not there") for line in found.summary
    )
    assert found.splits["train"].captions(np.arange(1)) == [""]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (DEEP, "line 1: not JSON"),
        ('{"file_name": "0.png", "text": "' + "x" * 2**21, "line 1: longer than 1,048,576 bytes"),
        (json.dumps({"file_name": "0.png", "kind": "x" * 2000}), "'kind' has 2,000 characters, a label at most 1,000"),
        ('{"file_name": "0.png", "kind": ' + HUGE + "}", "'kind' has 4,000 characters"),
        ('{"file_name": "0.png", "kind": NaN}', "'kind' is no label"),
        ('{"file_name": ["0.png"]}', "not a JSON object with a"),
    ],
    ids=range(6),
)
def test_an_absurd_description_is_refused_by_its_line(line, words, pictures):
    (pictures / "metadata.jsonl").write_text(line)
    with pytest.raises(UserError, match=words) as refused:
        source(pictures, label="kind")
    assert len(str(refused.value)) < 400


def test_a_caption_of_absurd_length_counts_as_none(pictures, caplog):
    for index in range(2):
        (pictures / f"{index}.txt").write_text("x" * (2**20 + 1))
    assert source(pictures).splits["train"].captions(np.arange(1)) == [""]
    assert "more than 1,048,576 characters" in caplog.text


def test_a_damaged_index_of_a_folder_is_made_anew(pictures):
    source(pictures)
    [index] = (pictures.parent / "cache").rglob("*.json")
    index.write_text(DEEP)
    assert any("was damaged" in line for line in source(pictures).summary)


@pytest.mark.parametrize("name", ["someone:set", "huggingface:mnist/x:1.0.0", "a-b:c"])
def test_a_tfds_set_of_a_namespace_is_refused_since_its_code_would_run(name):
    with pytest.raises(UserError, match="brings its author's code"):
        tfds_trust.check_name(name)


@pytest.mark.parametrize("name", ["mnist", "mnist:3.0.1", "mnist:3.*.*", "c4/en:3.0.1", "avatars/micah:1.0.0"])
def test_a_tfds_set_with_a_version_is_none_of_a_namespace(name):
    tfds_trust.check_name(name)


@pytest.mark.parametrize("tree", [{"pythonClassName": "trap.Feature"}, {"a": [{"b": {"type": "trap.Feature"}}]}])
def test_a_prepared_set_with_features_of_other_modules_is_refused(tree, tmp_path):
    (tmp_path / "features.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="not TFDS's own"):
        tfds_trust.check_classes(tmp_path)
