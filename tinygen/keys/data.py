"""The keywords of data sets, by name: the rows that `tinygen.build` makes."""

from typing import Any

from tinygen.keys.marks import own, resume

READING: dict[str, Any] = dict(  # how all data sets of text become tokens
    tokenizer="bytes",  # bytes | characters (what more is than a byte has a token) | bpe (made of the documents) | gpt2
    vocabulary=1024,  # tokens of bpe at most, the 256 bytes and the end of a document included
    files=resume(""),  # the folder of GPT-2's vocab.bpe and encoder.json; "" = those of an installed package (extra gpt2)
    length=256,  # tokens of a window, which is an example
    pack=True,  # windows follow each other all over the documents; False: each document begins one of its own, and the rest is padding
)

DATASETS: dict[str, dict[str, Any]] = {
    "digits": dict(label=own("label")),  # 5,000 MNIST digits, 28x28 grey, 10 classes; label="" = no condition
    "digits8": dict(label=own("label")),  # 1,797 digits, 8x8 grey, 10 classes
    "pixel_faces": dict(label=own("hair_color")),  # 10,000 faces, 16x16 RGB; label = the attribute to condition on, or ""
    "sine": dict(  # y = sin x on [-π, π]
        num=own(4096),  # examples to train on
        held_out=512,  # others, from the same interval
    ),
    "folder": dict(  # any tree of images; its folders train/ and validation/ (or val/, test/), where there is nothing else, are the splits
        path=own(resume("")),  # the folder; its content is what may not change on resume
        size=(64,),  # pixels: of each side, or height,width
        fit="crop",  # crop: its middle, which fills the size | pad: all of it, the rest background | squeeze: its proportions change
        channels=3,  # 1 = grey, 3 = RGB
        background="white",  # what transparency and padding show: a colour's name, or #rrggbb
        min_side=16,  # pixels; images with a shorter side are left out
        label=own("auto"),  # auto: folder if all images lie in two or more | folder: the first below path | "" = none | a key of metadata
        validation=0.05,  # share of the images held out, at least one; without effect where folders are the splits
        flip=False,  # mirror half of the training images, another half each epoch
    ),
    "avatars": dict(  # drawn faces, RGB: needs tinygen[avatars] to draw them, once
        style="micah",  # a row of tinygen.data.avatar_styles.STYLES
        num=own(20_000),  # faces, the held-out twentieth included
        size=(64,),  # pixels: of each side, or height,width of the middle; they are drawn at 64x64, and made smaller
        label=own("hair_color"),  # the attribute to condition on, or ""
        flip=False,  # mirror half of the training images
        data_dir=resume(""),  # where TFDS keeps prepared sets; "" = its own place, ~/tensorflow_datasets
    ),
    "celeb_a": dict(  # 202,599 photographs of faces, through TFDS
        label=own("attributes/Smiling"),  # one of 40 attributes, or ""
        size=(64,),  # pixels: of each side, or height,width; they are 218,178
        fit="crop",  # crop | pad | squeeze, as for a folder
        flip=True,  # mirror half of the training images
        data_dir=resume(""),  # where TFDS keeps prepared sets
    ),
    "latents": dict(  # of images, by an autoencoder: what scripts/prepare_latents.py has written
        path=own(resume("")),  # the folder; its content is what may not change on resume
        autoencoder=resume(""),  # what decodes them: a .safetensors file or a run; "" = what encoded them, where it was then
        sample=True,  # draw each training latent from its posterior, anew each epoch; otherwise its mean
        label=True,  # with the labels that the images had, if they had any
    ),
    "tfds": dict(  # any image set of TensorFlow Datasets
        dataset=own(""),  # a name that TFDS knows (cifar10, mnist, name/config:version), or the folder of a prepared builder
        train=own("train"),  # split, as TFDS writes them: train, train[:50%], train+test
        validation=own(""),  # split; "" = validation or test, or else the last twentieth of train
        image="",  # the image feature; "" = the only one
        label=own("auto"),  # a ClassLabel, bool or integer feature, nested ones as a/b; auto = the only ClassLabel, if any; "" = none
        size=(0,),  # pixels: of each side, or height,width; 0 = as stored, where all images have one size
        fit="crop",  # crop | pad | squeeze, as for a folder
        channels=0,  # 1 grey | 3 RGB | 0 as stored
        flip=False,  # mirror half of the training images
        data_dir=resume(""),  # where TFDS keeps prepared sets
    ),
    "shakespeare": READING,  # 14 plays to train on, two held out
    "text": dict(  # plain files, UTF-8
        path=own(resume("")),  # a file, or a folder of .txt files; its content is what may not change on resume
        marker="<|endoftext|>",  # what stands between two documents; "" = each file is one
        validation=0.05,  # share of the documents held out, at least one; of a lone document its last part
        **READING,
    ),
    "tfds_text": dict(  # any set of TensorFlow Datasets with a text feature: an example is a document
        dataset=own(""),  # a name that TFDS knows (tiny_shakespeare, lm1b, name/config:version), or the folder of a prepared builder
        train=own("train"),  # split, as TFDS writes them: train, train[:50%], train+test
        validation=own(""),  # split; "" = validation or test, or else the last twentieth of train
        feature="",  # the text feature; "" = the only one
        data_dir=resume(""),  # where TFDS keeps prepared sets
        **READING,
    ),
}
