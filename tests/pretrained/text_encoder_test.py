"""A CLIP and a T5 of random weights, read as those that were trained are. Skipped where the extra "text" is not installed: PyTorch and
transformers are large, and nothing else of the suite needs them.
"""

import shutil

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.pretrained import text_encoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["<pad>", "<begin>", "<end>", "<unknown>", *["a", "red", "blue", "house", "tree", "beside", "the", "with", "and", "of"]]
PROMPTS = ["a red house", "a tree beside the blue house with a tree and a red tree", "house"]
KINDS = ("clip", "t5")


def tokenizer(begin):
    """One token a word."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unknown>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    template = "<begin> $A <end>" if begin else "$A <end>"
    special = [(name, WORDS.index(name)) for name in ("<begin>", "<end>")]
    made.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<begin>", eos_token="<end>", unk_token="<unknown>"
    )


def model(kind):
    torch.manual_seed(0)
    if kind == "clip":
        sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=12)
        config = transformers.CLIPTextConfig(vocab_size=len(WORDS), **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
        return transformers.CLIPTextModel(config).eval()
    sizes = dict(d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    return transformers.T5EncoderModel(transformers.T5Config(vocab_size=len(WORDS), **sizes)).eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{kind: the folder of a text encoder}. Shared: only to be read."""
    made = {kind: tmp_path_factory.mktemp(kind) / "encoder" for kind in KINDS}
    for kind, folder in made.items():
        model(kind).save_pretrained(folder)
        tokenizer(kind == "clip").save_pretrained(folder)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_is_read_as_transformers_alone_reads_it_whatever_stands_beside_it(folders, kind):
    """Padding changes no token's embedding."""
    embed, there = text_encoder.load(str(folders[kind])).encode(PROMPTS, 12)
    assert (embed.shape, embed.dtype, there.dtype) == ((3, 12, 16), np.float32, bool)
    read = tokenizer(kind == "clip")
    for row, prompt in enumerate(PROMPTS):
        tokens = read([prompt], return_tensors="pt", truncation=True, max_length=12)
        with torch.no_grad():
            alone = model(kind)(input_ids=tokens["input_ids"]).last_hidden_state[0].numpy()
        np.testing.assert_array_equal(there[row], np.arange(12) < len(alone))
        np.testing.assert_allclose(embed[row, : len(alone)], alone, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(embed[row, len(alone) :], 0)


@pytest.mark.parametrize(("kind", "own"), [("clip", 2), ("t5", 1)])
def test_tokens_are_counted_with_the_encoder_s_own_and_cut_before_the_last(folders, kind, own):
    encoder = text_encoder.load(str(folders[kind]))
    counts = encoder.count(PROMPTS)
    assert counts == [3 + own, 13 + own, 1 + own]
    _, there = encoder.encode(PROMPTS, 6)
    assert there.sum(1).tolist() == [min(num, 6) for num in counts]
    with pytest.raises(UserError, match=f"has {13 + own} tokens, and this model reads 6"):
        encoder.prompts(PROMPTS, 6)


def test_it_says_what_it_is(folders):
    clip, t5 = (text_encoder.load(str(folders[kind])) for kind in KINDS)
    assert (clip.name, clip.features, clip.length) == (str(folders["clip"]), 16, 12)
    assert (t5.features, t5.length) == (16, text_encoder.LONGEST)
    assert clip.sha256 != t5.sha256


def test_the_sum_is_of_the_weights_and_not_of_their_files(folders, tmp_path):
    transformers.CLIPTextModel.from_pretrained(folders["clip"]).save_pretrained(tmp_path / "again", max_shard_size="2KB")
    tokenizer(True).save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again/model.safetensors").exists()
    again = text_encoder.load(str(tmp_path / "again"))
    assert again.sha256 == text_encoder.load(str(folders["clip"])).sha256
    changed = transformers.CLIPTextModel.from_pretrained(folders["clip"])
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] += 1
    changed.save_pretrained(tmp_path / "again", max_shard_size="2KB")
    assert text_encoder.load(str(tmp_path / "again")).sha256 != again.sha256


def test_the_whole_of_a_clip_is_read_for_its_text_alone(folders, tmp_path):
    text = transformers.CLIPTextConfig.from_pretrained(folders["clip"]).to_dict()
    vision = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    whole = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8))
    whole.save_pretrained(tmp_path / "whole")
    tokenizer(True).save_pretrained(tmp_path / "whole")
    read = text_encoder.load(str(tmp_path / "whole"))
    with torch.no_grad():
        tokens = tokenizer(True)(PROMPTS[:1], return_tensors="pt")["input_ids"]
        expected = whole.text_model(input_ids=tokens).last_hidden_state[0].numpy()
    np.testing.assert_allclose(read.encode(PROMPTS[:1], 12)[0][0, : len(expected)], expected, rtol=1e-5, atol=1e-5)


def without(name):
    return lambda folder: (folder / name).unlink()


def of_another_kind(folder):
    (folder / "config.json").write_text('{"model_type": "bert"}')


def of_more_layers(folder):
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without("config.json"), "cannot be read as a text encoder"),
        (without("model.safetensors"), "cannot be read as a text encoder"),
        (without("tokenizer.json"), "cannot be read as a text encoder"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"none"), "cannot be read as a text encoder"),
        (of_another_kind, "unknown kind of text encoder .* 'bert'"),
        (of_more_layers, r"\d+ arrays of the text encoder are not there"),
    ],
)
def test_a_folder_that_is_no_text_encoder_is_named(folders, tmp_path, damage, said):
    folder = shutil.copytree(folders["clip"], tmp_path / "copy")
    damage(folder)
    with pytest.raises(UserError, match=said):
        text_encoder.load(str(folder), "--encoder")


@pytest.mark.parametrize("name", ["/nowhere/at/all", "./nowhere", "a/b/c"])
def test_a_folder_that_is_not_there_is_named(name):
    with pytest.raises(UserError, match=f"--encoder={name}: there is no such folder"):
        text_encoder.load(name)


def test_a_name_without_a_network_is_told_of(monkeypatch):
    import huggingface_hub

    def unreachable(*arguments, **options):
        assert options["timeout"] <= 10
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(
        UserError, match=r"does not give an encoder of that name \(no route to host\)\.\nWithout a network, bring its folder"
    ):
        text_encoder.load("nobody/has-such-an-encoder")


def test_a_name_that_has_been_downloaded_needs_no_network(folders, monkeypatch):
    import huggingface_hub

    def unreachable(*arguments, **options):
        raise ConnectionError

    def cached(name, *, local_files_only):
        assert (name, local_files_only) == ("some/clip", True)
        return str(folders["clip"])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert text_encoder.load("some/clip").name == "some/clip"
