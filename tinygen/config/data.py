"""Keys of the data sets, by name: the rows of `data` that `tinygen.build` constructs."""

from typing import Any

from tinygen.config.key import OWN, RESUME, Section, key

FITS = ("crop", "pad", "squeeze")

READING: dict[str, Any] = dict(  # tokenization, the same for all text data sets
    tokenizer=key(
        "bytes",
        "characters: the rarest are spelled as bytes; bpe: trained on the documents; gpt2: GPT-2's tokenizer",
        choices=("bytes", "characters", "bpe", "gpt2"),
    ),
    vocabulary=key(1024, "maximum vocabulary of bpe, including the 256 bytes and the end-of-document token"),
    files=key("", "folder of GPT-2's vocab.bpe and encoder.json; '': those of the installed extra gpt2", RESUME),
    length=key(256, "tokens per window; a window is an example"),
    pack=key(True, "pack documents into windows; False: each document starts a new window, and the rest is padding"),
)

DATASETS: dict[str, Section] = {
    "digits": Section("5,000 MNIST digits, 28x28 grey, 10 classes", label=key("label", "the label to condition on; '': none", OWN)),
    "digits8": Section(
        "1,797 digits, 8x8 grey, 10 classes",
        label=key("label", "the label to condition on; '': none", OWN),
        tokens=key(False, "give the 17 grey levels as tokens, for objective discrete"),
    ),
    "pixel_faces": Section("10,000 faces of pixel art, 16x16 RGB", label=key("hair_color", "the attribute to condition on; '': none", OWN)),
    "sine": Section(
        "points of y = sin x on [-π, π]",
        num=key(4096, "examples to train on", OWN),
        held_out=key(512, "held-out examples, from the same interval"),
    ),
    "folder": Section(
        "a tree of image files; if its only folders are train/ and validation/ (or val/, test/), they are the splits",
        path=key("", "the folder; its content may not change on resume", OWN, RESUME),
        size=key((64,), "pixels per side, or height,width"),
        fit=key(
            "crop",
            "crop: scale to cover, keep the centre; pad: scale to fit, fill with background; squeeze: ignore the aspect ratio",
            choices=FITS,
        ),
        channels=key(3, "1: grey, 3: RGB"),
        background=key("white", "colour behind transparency and padding: a name, or #rrggbb"),
        min_side=key(16, "pixels; images with a shorter side are skipped"),
        label=key(
            "auto", "folder: the top-level folder; auto: folder if all images are in two or more of them; '': none; or a metadata key", OWN
        ),
        validation=key(0.05, "share of held-out images, at least one; no effect if folders are the splits"),
        flip=key(False, "flip each training image horizontally with probability 1/2"),
    ),
    "avatars": Section(
        "drawn faces, RGB; generated once, which needs the extra avatars",
        style=key("micah", "a key of tinygen.data.avatars.styles.STYLES"),
        num=key(20_000, "number of faces, including the held-out 5 %", OWN),
        size=key((64,), "pixels per side, or height,width of a centre crop; faces are drawn at 64x64 and downscaled"),
        label=key("hair_color", "the attribute to condition on; '': none", OWN),
        flip=key(False, "flip each training image horizontally with probability 1/2"),
        data_dir=key("", "where TFDS stores prepared data sets; '': its default, ~/tensorflow_datasets", RESUME),
    ),
    "celeb_a": Section(
        "202,599 photographs of faces, through TFDS",
        label=key("attributes/Smiling", "one of 40 attributes; '': none", OWN),
        size=key((64,), "pixels per side, or height,width; the photographs are 218,178"),
        fit=key("crop", "see data.folder", choices=FITS),
        flip=key(True, "flip each training image horizontally with probability 1/2"),
        data_dir=key("", "where TFDS stores prepared data sets; '': its default", RESUME),
    ),
    "latents": Section(
        "latents or tokens of images, encoded by scripts/prepare/prepare_latents.py of a checkout",
        path=key("", "the folder; its content may not change on resume", OWN, RESUME),
        autoencoder=key("", "decoder: a file of weights or a run; '': the path recorded with the latents", RESUME),
        sample=key(True, "sample each training latent from its posterior, anew each epoch; False: use the mean; tokens have none"),
        label=key(True, "use the labels of the images, if they have any"),
    ),
    "tfds": Section(
        "any image data set of TensorFlow Datasets",
        dataset=key("", "a TFDS name (cifar10, mnist, name/config:version), or the folder of a prepared builder", OWN),
        train=key("train", "training split in TFDS syntax: train, train[:50%], train+test", OWN),
        validation=key("", "held-out split; '': validation or test if there is one, otherwise the last 5 % of train", OWN),
        image=key("", "the image feature; '': the only one"),
        label=key(
            "auto", "a ClassLabel, bool or integer feature, nested as a/b; auto: the only ClassLabel, if there is one; '': none", OWN
        ),
        size=key((0,), "pixels per side, or height,width; 0: as stored, if all images have the same size"),
        fit=key("crop", "see data.folder", choices=FITS),
        channels=key(0, "1: grey, 3: RGB, 0: as stored"),
        flip=key(False, "flip each training image horizontally with probability 1/2"),
        data_dir=key("", "where TFDS stores prepared data sets; '': its default", RESUME),
    ),
    "shakespeare": Section("16 plays of Shakespeare, two of them held out", **READING),
    "text": Section(
        "plain text files, UTF-8",
        path=key("", "a file, or a folder of files; their content may not change on resume", OWN, RESUME),
        pattern=key(
            "*.txt",
            "comma-separated glob patterns for a folder's files, ignoring case: *.py,*.md; '': all text files that are not hidden",
            RESUME,
        ),
        marker=key("<|endoftext|>", "separator between documents; '': each file is one document"),
        validation=key(0.05, "share of held-out documents, at least one; of a single document, its end"),
        **READING,
    ),
    "tfds_text": Section(
        "any data set of TensorFlow Datasets with a text feature; each example is a document",
        dataset=key("", "a TFDS name (tiny_shakespeare, lm1b, name/config:version), or the folder of a prepared builder", OWN),
        train=key("train", "training split in TFDS syntax: train, train[:50%], train+test", OWN),
        validation=key("", "held-out split; '': validation or test if there is one, otherwise the last 5 % of train", OWN),
        feature=key("", "the text feature; '': the only one"),
        data_dir=key("", "where TFDS stores prepared data sets; '': its default", RESUME),
        **READING,
    ),
}
