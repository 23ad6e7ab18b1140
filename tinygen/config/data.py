"""The keywords of data sets, by name: the rows that `tinygen.build` makes."""

from typing import Any

from tinygen.config.key import OWN, RESUME, Section, key

FITS = ("crop", "pad", "squeeze")

READING: dict[str, Any] = dict(  # how all data sets of text become tokens
    tokenizer=key(
        "bytes",
        "characters: the rarest are spelt in bytes; bpe: trained on the documents; gpt2: GPT-2's own",
        choices=("bytes", "characters", "bpe", "gpt2"),
    ),
    vocabulary=key(1024, "most tokens of bpe, the 256 bytes and the end of a document included"),
    files=key("", "the folder of GPT-2's vocab.bpe and encoder.json; '': those of the installed extra gpt2", RESUME),
    length=key(256, "tokens per window, which is an example"),
    pack=key(True, "windows run on across documents; False: each document starts a window of its own, and the rest is padding"),
)

DATASETS: dict[str, Section] = {
    "digits": Section(
        "5,000 MNIST digits, 28x28 grey, 10 classes",
        label=key("label", "the label to condition on; '': none", OWN),
    ),
    "digits8": Section(
        "1,797 digits, 8x8 grey, 10 classes",
        label=key("label", "the label to condition on; '': none", OWN),
    ),
    "pixel_faces": Section(
        "10,000 faces of pixel art, 16x16 RGB",
        label=key("hair_color", "the attribute to condition on; '': none", OWN),
    ),
    "sine": Section(
        "points of y = sin x on [-π, π]",
        num=key(4096, "examples to train on", OWN),
        held_out=key(512, "held-out examples, from the same interval"),
    ),
    "folder": Section(
        "any tree of images; folders train/ and validation/ (or val/, test/), where there is nothing else, are the splits",
        path=key("", "the folder; its content may not change on resume", OWN, RESUME),
        size=key((64,), "pixels: of each side, or height,width"),
        fit=key(
            "crop",
            "crop: its middle, which fills the size; pad: all of it, the rest background; squeeze: its proportions change",
            choices=FITS,
        ),
        channels=key(3, "1: grey, 3: RGB"),
        background=key("white", "what transparency and padding show: a colour's name, or #rrggbb"),
        min_side=key(16, "pixels; images with a shorter side are left out"),
        label=key(
            "auto", "auto: folder if all images lie in two or more; folder: the first below path; '': none; or a key of the metadata", OWN
        ),
        validation=key(0.05, "share of the images held out, at least one; without effect where folders are the splits"),
        flip=key(False, "mirror half of the training images, another half each epoch"),
    ),
    "avatars": Section(
        "drawn faces, RGB; drawn once, which needs the extra avatars",
        style=key("micah", "a row of tinygen.data.avatars.styles.STYLES"),
        num=key(20_000, "faces, the held-out twentieth included", OWN),
        size=key((64,), "pixels: of each side, or height,width of the middle; faces are drawn at 64x64 and reduced"),
        label=key("hair_color", "the attribute to condition on; '': none", OWN),
        flip=key(False, "mirror half of the training images"),
        data_dir=key("", "where TFDS keeps prepared sets; '': its default, ~/tensorflow_datasets", RESUME),
    ),
    "celeb_a": Section(
        "202,599 photographs of faces, through TFDS",
        label=key("attributes/Smiling", "one of 40 attributes; '': none", OWN),
        size=key((64,), "pixels: of each side, or height,width; the photographs are 218,178"),
        fit=key("crop", "as for a folder", choices=FITS),
        flip=key(True, "mirror half of the training images"),
        data_dir=key("", "where TFDS keeps prepared sets; '': its default", RESUME),
    ),
    "latents": Section(
        "latents of images by an autoencoder, as scripts/prepare/prepare_latents.py of a checkout writes them",
        path=key("", "the folder; its content may not change on resume", OWN, RESUME),
        autoencoder=key("", "what decodes them: a .safetensors file or a run; '': what encoded them, where it was then", RESUME),
        sample=key(True, "draw each training latent from its posterior, anew each epoch; otherwise its mean"),
        label=key(True, "with the labels of the images, if they had any"),
    ),
    "tfds": Section(
        "any image set of TensorFlow Datasets",
        dataset=key("", "a name known to TFDS (cifar10, mnist, name/config:version), or the folder of a prepared builder", OWN),
        train=key("train", "split, as TFDS writes them: train, train[:50%], train+test", OWN),
        validation=key("", "split; '': validation or test, or else the last twentieth of train", OWN),
        image=key("", "the image feature; '': the only one"),
        label=key(
            "auto", "a ClassLabel, bool or integer feature, nested ones as a/b; auto: the only ClassLabel, if there is one; '': none", OWN
        ),
        size=key((0,), "pixels: of each side, or height,width; 0: as stored, where all images have one size"),
        fit=key("crop", "as for a folder", choices=FITS),
        channels=key(0, "1: grey, 3: RGB, 0: as stored"),
        flip=key(False, "mirror half of the training images"),
        data_dir=key("", "where TFDS keeps prepared sets; '': its default", RESUME),
    ),
    "shakespeare": Section("14 plays to train on, two held out", **READING),
    "text": Section(
        "plain files, UTF-8",
        path=key("", "a file, or a folder of them; their content may not change on resume", OWN, RESUME),
        pattern=key(
            "*.txt", "names of a folder's files, in either case: *.py,*.md means both; '': all that are text and not hidden", RESUME
        ),
        marker=key("<|endoftext|>", "what separates documents; '': each file is one"),
        validation=key(0.05, "share of the documents held out, at least one; of a lone document its last part"),
        **READING,
    ),
    "tfds_text": Section(
        "any set of TensorFlow Datasets with a text feature: an example is a document",
        dataset=key("", "a name known to TFDS (tiny_shakespeare, lm1b, name/config:version), or the folder of a prepared builder", OWN),
        train=key("train", "split, as TFDS writes them: train, train[:50%], train+test", OWN),
        validation=key("", "split; '': validation or test, or else the last twentieth of train", OWN),
        feature=key("", "the text feature; '': the only one"),
        data_dir=key("", "where TFDS keeps prepared sets; '': its default", RESUME),
        **READING,
    ),
}
