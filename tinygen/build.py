"""Builds objects from the names in a config. A new model, objective or data set takes one file, one row here and one in config/."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx

from tinygen import optim
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.distributed.mesh import Layout, check_rules, make_mesh
from tinygen.errors import UserError, unknown
from tinygen.models.autoencoder import Autoencoder
from tinygen.models.classifier import Classifier
from tinygen.models.convnext import ConvNeXt
from tinygen.models.hourglass import Hourglass
from tinygen.models.microdit import MicroDiT
from tinygen.models.minigpt import MiniGPT
from tinygen.models.mlp import MLP
from tinygen.models.tokenizer import Tokenizer
from tinygen.nn.matmul import best_precision
from tinygen.nn.names import path_name, variable_name
from tinygen.objectives.autoencoder import Reconstruction
from tinygen.objectives.autoregressive import Autoregressive
from tinygen.objectives.base import Objective
from tinygen.objectives.classification import Classification
from tinygen.objectives.discrete import Discrete
from tinygen.objectives.edm import EDM
from tinygen.objectives.flow import FlowMatching
from tinygen.objectives.meanflow import ImprovedMeanFlow, MeanFlow
from tinygen.objectives.regression import Regression
from tinygen.objectives.tokenization import Tokenization
from tinygen.train_step import Tree, split

MODELS: dict[str, Callable[..., nnx.Module]] = {
    "microdit": MicroDiT,
    "hourglass": Hourglass,
    "minigpt": MiniGPT,
    "convnext": ConvNeXt,
    "mlp": MLP,
    "classifier": Classifier,
    "autoencoder": Autoencoder,
    "tokenizer": Tokenizer,
}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "flow": FlowMatching,
    "edm": EDM,
    "meanflow": MeanFlow,
    "improved_meanflow": ImprovedMeanFlow,
    "regression": Regression,
    "classification": Classification,
    "autoregressive": Autoregressive,
    "discrete": Discrete,
    "autoencoder": Reconstruction,
    "tokenizer": Tokenization,
}

COMMON = {"data": ("overfit",)}  # keys that are not keywords of the constructor


@functools.cache
def datasets() -> dict[str, Callable[..., DataSource]]:
    """The table of data sets. Imported lazily: a model can be built without the readers of data."""
    from tinygen.data import latents, synthetic
    from tinygen.data.builtin import images
    from tinygen.data.images import folder
    from tinygen.data.text import sources as text
    from tinygen.data.tfds import images as tfds
    from tinygen.data.tfds import text as tfds_text

    return {
        "digits": images.digits,
        "digits8": images.digits8,
        "pixel_faces": images.pixel_faces,
        "sine": synthetic.sine,
        "folder": folder.folder,
        "avatars": tfds.avatars,
        "celeb_a": tfds.celeb_a,
        "tfds": tfds.tfds,
        "latents": latents.latents,
        "shakespeare": text.shakespeare,
        "text": text.text,
        "tfds_text": tfds_text.tfds_text,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The components of a run except its data: all that sampling from a checkpoint needs.

    create: makes the model from RNG streams; traced with `nnx.eval_shape` when only shapes are needed
    graphdef: the static part of the model
    weights: shapes of (params, buffers)
    """

    codec: Codec
    objective: Objective
    create: Callable[[nnx.Rngs], nnx.Module]
    graphdef: nnx.GraphDef
    weights: tuple[Tree, Tree]
    layout: Layout


def data_source(config: Config, known: Codec | None = None, *, prepares: bool = True) -> DataSource:
    """The data set of a configuration, with captions in its batches if the recipe conditions on them.

    known: the codec of the resumed run, or of its warm start, so that tokens keep their meaning
    prepares: whether a missing data set may be created at the path in `config`; False for a checkpoint's config, which is untrusted
    """
    source = _made(datasets(), "data", config, {"known": known, "prepares": prepares})
    return captioned(config, source, known).overfitting(config.data.overfit)


def captioned(config: Config, source: DataSource, known: Codec | None = None) -> DataSource:
    """The source with captions in its batches, if the recipe asks for them.

    Raises UserError if there are labels too: a sampling request cannot know which caption goes with which label.
    """
    if source.codec.labels and (config.text.tokens or config.text.embeddings):
        none = repr(type(config.data.get("label", ""))())
        raise UserError(f"a model is conditioned on captions or labels, not both: drop the labels with --config.data.label={none}")
    if config.text.tokens:
        from tinygen.data.captions.tokenized import tokenized

        reading = {key: config.text[key] for key in ("tokens", "length", "vocabulary")}
        return tokenized(source, known=known, **reading)
    if config.text.embeddings:
        from tinygen.data.captions.embedded import embedded

        return embedded(source, config.text.embeddings, known)
    return source


def parts(config: Config, codec: Codec) -> Parts:
    """Raises UserError if model or objective does not fit the data, or the mesh does not fit the machine."""
    facts = {**codec.facts(), "precision": precision(config)}
    mesh = make_mesh(config.mesh)
    objective = _made(OBJECTIVES, "objective", config, facts)
    check_time(config, objective)
    facts |= objective.facts()
    facts |= {key: config[key] for key in ("attention", "remat", "scan")}
    check_arguments(config, codec, objective)

    def create(rngs: nnx.Rngs) -> nnx.Module:
        return _made(MODELS, "model", config, {**facts, "rngs": rngs})

    # Shapes only: the constructor's errors are raised before any memory is allocated.
    model = nnx.eval_shape(lambda: create(nnx.Rngs(0)))
    graphdef, params, buffers = split(model)
    check_mesh(config, model, mesh.shape["tensor"])
    variables = {"params": params, "buffers": buffers}
    names = [variable_name(path_name(path)) for path, _ in jax.tree_util.tree_leaves_with_path(variables)]
    own = getattr(_row(MODELS, "model", config), "SHARDING", ())
    layout = Layout(mesh, (*check_rules(config.sharding.rules, names), *own), config.sharding.min_size)
    layout.shardings(variables)
    return Parts(codec=codec, objective=objective, create=create, graphdef=graphdef, weights=(params, buffers), layout=layout)


def optimizer(config: Config) -> tuple[Any, optim.Schedule]:
    """The recipe's Optax chain and its schedule."""
    keys, schedule = config.optim, optim.make_schedule(**schedule_keys(config))
    return optim.make_optimizer(schedule, b1=keys.b1, b2=keys.b2, eps=keys.eps, weight_decay=keys.weight_decay, clip=keys.clip), schedule


def schedule_keys(config: Config) -> dict[str, Any]:
    """The keywords of `optim.make_schedule`."""
    keys = {key: config.optim[key] for key in ("lr", "schedule", "warmup", "decay_steps", "final_lr")}
    return keys | {"decay_steps": keys["decay_steps"] or config.train.steps}


def check_mesh(config: Config, model: nnx.Module, tensor: int) -> None:
    """Raises UserError where mesh.tensor does not divide what a module splits over it."""
    for _, module in nnx.iter_modules(model):
        if check := getattr(module, "check_mesh", None):
            check(tensor, config.model)


def check_time(config: Config, objective: Objective) -> None:
    """Raises UserError if the model's time embedding varies too fast for the objective."""
    most, scale = objective.max_time_scale, config.model.get("time_scale", 0.0)
    if scale > most:
        wanted = f"objective {config.objective.name!r} wants {most:g} or less, such as --config.model.time_scale={min(most, 16):g}"
        raise UserError(f"config.model.time_scale={scale}: {wanted}")


def check_arguments(config: Config, codec: Codec, objective: Objective) -> None:
    """Raises UserError for a condition or a second head that the model does not have, and for keys without effect on it."""
    row = _row(MODELS, "model", config)
    arguments = inspect.signature(row.__init__).parameters
    for name in objective.passes:
        if name not in inspect.signature(row.__call__).parameters:
            fit = ", ".join(each for each, other in MODELS.items() if name in inspect.signature(other.__call__).parameters)
            raise UserError(f"objective {config.objective.name!r} does not train model {config.model.name!r}: choose one of {fit}")
    for key, off in {"remat": "none", "scan": 0, "attention": "auto"}.items():
        if config[key] != off and key not in arguments:
            raise UserError(f"config.{key}={config[key]}: model {config.model.name!r} has no such choice. Leave it at {off!r}")
    if objective.head and "head" not in arguments:
        raise UserError(f"objective {config.objective.name!r} needs a second prediction, and model {config.model.name!r} has none (head)")
    for each in codec.conditions:
        if each.fact and each.fact not in arguments:
            raise UserError(each.unread(config.model.name))


def precision(config: Config) -> str:
    """config.precision, or the backend's best for "auto"."""
    return best_precision(jax.default_backend()) if config.precision == "auto" else config.precision


def _row(table: Mapping[str, Callable[..., Any]], section: str, config: Config) -> Callable[..., Any]:
    name = config[section].name
    if name not in table:
        raise unknown(section, name, table)
    return table[name]


def _made(table: Mapping[str, Callable[..., Any]], section: str, config: Config, facts: Mapping[str, Any]) -> Any:
    """Calls the row's constructor with the config's keywords and the facts among its parameters."""
    constructor = _row(table, section, config)
    keywords = {key: value for key, value in config[section].to_dict().items() if key not in ("name", *COMMON.get(section, ()))}
    # A module's class hides its constructor's signature behind (*args, **kwargs).
    function = constructor.__init__ if isinstance(constructor, type) else constructor
    wanted = [name for name in inspect.signature(function).parameters if name != "self"]
    missing = [name for name in wanted if name not in keywords and name not in facts]
    if missing:
        raise UserError(f"{section} {config[section].name!r} needs {', '.join(missing)}, which data set {config.data.name!r} does not have")
    return constructor(**keywords, **{name: facts[name] for name in wanted if name in facts})
