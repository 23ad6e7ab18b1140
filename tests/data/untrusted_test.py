"""Pictures, their descriptions and prepared sets that others made are only read: nothing in them runs, and what is absurd is left out or
refused in a line, before it takes memory or time."""

import csv
import io
import json
import struct
import zlib

import numpy as np
import pytest
from confinement import confined
from PIL import Image

from tinygen.data.images import pixels
from tinygen.data.images.folder import folder
from tinygen.data.tfds import trust
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


def j2k(width, height):
    size = struct.pack(">HHIIIIIIIIH", 47, 0, width, height, 0, 0, width, height, 0, 0, 3) + bytes([7, 1, 1]) * 3
    return b"\xff\x4f\xff\x51" + size + b"\xff\xd9"


def avif(width, height):
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "AVIF")
    return stream.getvalue().replace(b"ispe" + struct.pack(">III", 0, 16, 16), b"ispe" + struct.pack(">III", 0, width, height))


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
    **({"tile.j2k": j2k(60_000, 60_000)} if "JPEG2000" in pixels.FORMATS else {}),
    **({"strip.avif": avif(32_000, 8_000)} if "AVIF" in pixels.FORMATS else {}),
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
        path=str(path), size=(8,), fit="crop", channels=3, background="white", min_side=1, label=label, validation=0.5, flip=False
    )  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_picture_whose_header_promises_too_much_is_left_out_before_it_takes_memory(name, pictures):
    (pictures / name).write_bytes(BOMBS[name])
    with confined():
        found = source(pictures)
    assert sum(map(len, found.splits.values())) == 2
    assert any(f"1 of 3 files left out: {name!r}" in line for line in found.summary)


def table(*entries):
    """A metadata.csv that says what these entries of a metadata.jsonl say."""
    written = io.StringIO()
    rows = csv.DictWriter(written, list(dict.fromkeys(key for entry in entries for key in entry)))
    rows.writeheader()
    rows.writerows(entries)
    return written.getvalue()


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_names_outside_of_the_folder_are_those_of_no_picture(kind, pictures):
    secret = pictures.parent / "secret.png"
    secret.write_bytes((pictures / "0.png").read_bytes())
    outside = [str(secret), "../pictures/../secret.png", "../a/b.png", "/etc/passwd", "a/../../b", "x" * 10**5, "\x1b[31m.png"]
    entries = [{"file_name": name, "text": "told"} for name in outside]
    text = table(*entries) if kind == "csv" else "\n".join(map(json.dumps, entries))
    (pictures / f"metadata.{kind}").write_text(text)
    found = source(pictures)
    [line] = [line for line in found.summary if "no image that is there" in line]
    assert line.startswith(f"7 of 7 entries name no image that is there (metadata.{kind}: ")
    assert len(line) < 400
    assert line.isprintable()
    assert [split.captions(np.arange(1)) for split in found.splits.values()] == [[""], [""]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (DEEP, "line 1: not JSON"),
        ('{"file_name": "0.png", "text": "' + "x" * 2**21, "line 1: longer than 1,048,576 bytes"),
        (json.dumps({"file_name": "0.png", "kind": "x" * 2000}), "'kind' has 2,000 characters, a label at most 1,000"),
        ('{"file_name": "0.png", "kind": ' + HUGE + "}", "'kind' has 4,000 characters"),
        ('{"file_name": "0.png", "kind": NaN}', "'kind' is not a label"),
        ('{"file_name": ["0.png"]}', "not a JSON object with a"),
        ('{"file_name": "0.png", "text": "\0"}', r"line 1: not JSON \(line 1 holds a zero byte\)"),
        (json.dumps({"file_name": "0.png"} | {f"key {number}": 1 for number in range(1001)}), "more than 1,000 different keys"),
        (json.dumps({"file_name": "0.png", "k" * 10**5: 1}), "unknown config.data.label 'kind'"),
        ('{"file_name": "%s"}\n' % ("x" * 10**5) * 2, "line 2: 'x+\\.\\.\\.x+' is described a second time"),
    ],
    ids=range(10),
)
def test_an_absurd_description_is_refused_by_its_line(line, words, pictures):
    (pictures / "metadata.jsonl").write_text(line)
    with pytest.raises(UserError, match=words) as refused:
        source(pictures, label="kind")
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('file_name,text\n0.png,"' + "x" * 2**21, "line 2: longer than 1,048,576 bytes"),
        ('file_name,text\n0.png,"' + "x\n" * 2**20, "line 2: longer than 1,048,576 bytes"),
        ("," * 2**21, "line 1: longer than 1,048,576 bytes"),
        ("file_name," + ",".join(map(str, range(1001))), "more than 1,000 different keys"),
        ("file_name,kind\n0.png," + "x" * 2000, "'kind' has 2,000 characters, a label at most 1,000"),
        ("file_name,text\n0.png,a\0b", r"line 2: not CSV \(line 2 holds a zero byte\)"),
        ('file_name,text\n0.png,"a\n\0b"', r"line 2: not CSV \(line 3 holds a zero byte\)"),
        ("file_name," + "k" * 10**5 + "\n0.png,1", "unknown config.data.label 'kind'"),
        (f"file_name\n{'x' * 10**5}\n{'x' * 10**5}", "line 3: 'x+\\.\\.\\.x+' is described a second time"),
    ],
    ids=range(9),
)
def test_an_absurd_table_is_refused_as_an_absurd_description_is(content, words, pictures):
    (pictures / "metadata.csv").write_text(content)
    with confined(), pytest.raises(UserError, match=words) as refused:
        source(pictures, label="kind")
    assert len(str(refused.value)) < 500


def test_a_table_leaves_the_limits_of_other_readers_as_they_were(pictures):
    before = csv.field_size_limit(1000)
    (pictures / "metadata.csv").write_text(table({"file_name": "0.png", "text": "x" * 2**18}))
    captions = [caption for split in source(pictures).splits.values() for caption in split.captions(np.arange(1))]
    assert sorted(map(len, captions)) == [0, 2**18]
    assert csv.field_size_limit(before) == 1000


def test_a_caption_of_absurd_length_counts_as_none(pictures):
    for index in range(2):
        (pictures / f"{index}.txt").write_text("x" * (2**20 + 1))
    found = source(pictures)
    assert found.splits["train"].captions(np.arange(1)) == [""]
    assert any("'0.txt' (more than 1,048,576 characters)" in line for line in found.summary)


def test_a_damaged_index_of_a_folder_is_rebuilt(pictures):
    source(pictures)
    [index] = (pictures.parent / "cache").rglob("*.json")
    index.write_text(DEEP)
    assert any("was damaged" in line for line in source(pictures).summary)


@pytest.mark.parametrize("name", ["someone:set", "huggingface:mnist/x:1.0.0", "a-b:c"])
def test_a_tfds_set_of_a_namespace_is_refused_since_its_code_would_run(name):
    with pytest.raises(UserError, match="runs its author's code"):
        trust.check_name(name)


@pytest.mark.parametrize("name", ["mnist", "mnist:3.0.1", "mnist:3.*.*", "c4/en:3.0.1", "avatars/micah:1.0.0"])
def test_a_tfds_set_with_a_version_is_none_of_a_namespace(name):
    trust.check_name(name)


@pytest.mark.parametrize("tree", [{"pythonClassName": "trap.Feature"}, {"a": [{"b": {"type": "trap.Feature"}}]}])
def test_a_prepared_set_with_features_of_other_modules_is_refused(tree, tmp_path):
    (tmp_path / "features.json").write_text(json.dumps(tree))
    with pytest.raises(UserError, match="not TFDS's own"):
        trust.check_classes(tmp_path)
