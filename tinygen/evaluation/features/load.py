"""Feature extractors by name: Inception, EfficientNet-Lite0, or a classifier trained by the user."""

import os
from collections.abc import Sequence

import jax
import numpy as np
from PIL import Image

from tinygen.checkpoints import store
from tinygen.checkpoints.weights import digest, frozen
from tinygen.data.codec import encode_pixels
from tinygen.errors import UserError, unknown
from tinygen.evaluation.features.efflite import efflite0
from tinygen.evaluation.features.inception import inception
from tinygen.evaluation.features.network import Network
from tinygen.evaluation.features.resize import bicubic
from tinygen.train_step import Tree, merge

NAMES = ("inception", "efflite0")


def load(name: str, *, preset: str | None, weights: str | None, option: str = "--features") -> Network:
    """The network with a name, or of a run by its workdir.

    preset, weights: for Inception, see `inception.inception`; preset None: adm
    option: the option that the name was given with
    Raises UserError if it does not exist, or its weights are unavailable.
    """
    if name == "inception":
        return inception(preset or "adm", weights)
    if name not in NAMES and not os.path.isdir(name):
        raise UserError(f"{option}={name}: there is no such folder") if os.sep in name else unknown(option, name, NAMES)
    if weights or preset:
        raise UserError(f"{'weights are' if weights else 'a preset is'} for Inception only; {option}={name} has its own")
    if name == "efflite0":
        return efflite0()
    return of_run(name, option)


def of_run(ckpt: str, option: str = "--features") -> Network:
    """The averaged weights of a classification run, as a network in float32; its distance is FD-(name of the run).

    Inputs have the run's image size, resized like clean-fid (Parmar et al. 2022), grey if the run's images are, in [-1, 1]. Raises
    UserError if the run is not an image classifier.
    """
    saved = store.find(ckpt, option=option)
    if saved.config.objective.name != "classification" or not saved.codec.comparable:
        raise UserError(
            f"{option}={ckpt}: a run of objective {saved.config.objective.name!r} on {saved.codec.noun} data has none to compare.\n"
            "Train a classifier on your labels first, tinygen train --config=classify_digits, and give its workdir."
        )
    height, width, channels = saved.codec.spec["x"].shape
    parts, *variables = frozen(saved)

    def prepare(image: np.ndarray) -> np.ndarray:
        if channels == 1:  # BT.601, like Pillow; grey images are unchanged
            image = np.repeat(np.asarray(Image.fromarray(image).convert("L"))[..., None], 3, -1)
        return encode_pixels(bicubic(image, (height, width)))

    def apply(variables: Sequence[Tree], x: jax.Array) -> dict[str, jax.Array]:
        model = merge(parts.graphdef, *variables)
        features = model.features(x[..., :channels])
        return {"features": features, "logits": model.logits(features)}

    name = saved.name
    if name in NAMES:
        raise UserError(f"{option}={ckpt}: {name} is the name of a public network: rename this run's folder")
    pixels = jax.ShapeDtypeStruct((1, height, width, 3), "float32")
    return Network(
        name=name,
        distance=f"FD-{name}",
        dim=jax.eval_shape(apply, variables, pixels)["features"].shape[-1],
        preset=f"{height}x{width}, {'grey' if channels == 1 else 'RGB'}, bicubic, [-1, 1]",
        size=(height, width),
        prepare=prepare,
        apply=apply,
        variables=variables,
        sha256=digest(variables),
    )
