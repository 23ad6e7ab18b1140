"""From names in a config to objects. To add a model, an objective or a data set: one file, one row here, one row in config/."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tinygen import optim
from tinygen.config import Config
from tinygen.data.codec import Codec
from tinygen.data.source import DataSource
from tinygen.distributed.mesh import Layout, check_rules, make_mesh
from tinygen.errors import UserError, unknown
from tinygen.models.autoencoder import Autoencoder
from tinygen.models.classifier import Classifier
from tinygen.models.convnext import ConvNeXt
from tinygen.models.microdit import MicroDiT
from tinygen.models.minigpt import MiniGPT
from tinygen.models.mlp import MLP
from tinygen.nn.attention import Attention
from tinygen.nn.causal_attention import CausalAttention
from tinygen.nn.experts import Experts
from tinygen.nn.layers import GELU, SwiGLU
from tinygen.nn.matmul import best_precision
from tinygen.nn.names import path_name, variable_name
from tinygen.objectives.autoencoder import Reconstruction
from tinygen.objectives.autoregressive import Autoregressive
from tinygen.objectives.base import Objective
from tinygen.objectives.classification import Classification
from tinygen.objectives.edm import EDM
from tinygen.objectives.flow import FlowMatching
from tinygen.objectives.meanflow import ImprovedMeanFlow, MeanFlow
from tinygen.objectives.regression import Regression
from tinygen.train_step import Call, TrainState, make_train_step, make_train_steps, split

MODELS: dict[str, Callable[..., nnx.Module]] = {
    "microdit": MicroDiT,
    "minigpt": MiniGPT,
    "convnext": ConvNeXt,
    "mlp": MLP,
    "classifier": Classifier,
    "autoencoder": Autoencoder,
}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "flow": FlowMatching,
    "edm": EDM,
    "meanflow": MeanFlow,
    "improved_meanflow": ImprovedMeanFlow,
    "regression": Regression,
    "classification": Classification,
    "autoregressive": Autoregressive,
    "autoencoder": Reconstruction,
}

COMMON = {"data": ("overfit",)}  # keys of a section that are not the row's own keywords


@functools.cache
def datasets() -> dict[str, Callable[..., DataSource]]:
    """The table of data sets. What reads them is imported with it: a model, which is made without data, needs none of that."""
    from tinygen.data import synthetic
    from tinygen.data.builtin import images
    from tinygen.data.images import folder
    from tinygen.data.latents import sources
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
        "latents": sources.latents,
        "shakespeare": text.shakespeare,
        "text": text.text,
        "tfds_text": tfds_text.tfds_text,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of, data apart: all that sampling from a checkpoint needs.

    create: makes the model from random streams; cheap to trace, so it can be evaluated for shapes alone
    graphdef: the model's static half
    """

    codec: Codec
    objective: Objective
    create: Callable[[nnx.Rngs], nnx.Module]
    graphdef: nnx.GraphDef
    layout: Layout


def data_source(config: Config, known: Codec | None = None, *, prepares: bool = True) -> DataSource:
    """The data set of a configuration, with captions in its batches where the recipe has a model learn from them.

    known: the codec of the run so far, or of the run that it begins from: tokens keep the meaning that a model has learnt
    prepares: whether a set that is not there may be made where `config` says: not if that is of a checkpoint, which may be anyone's
    """
    source = _made(datasets(), "data", config, {"known": known, "prepares": prepares})
    return captioned(config, source, known).overfitting(config.data.overfit)


def captioned(config: Config, source: DataSource, known: Codec | None = None) -> DataSource:
    """The source with captions in its batches, where the recipe asks for them.

    Raises UserError for labels besides: only the examples know which caption goes with which label, and a request would have to.
    """
    if source.codec.labels and (config.text.tokens or config.text.embeddings):
        none = repr(type(config.data.get("label", ""))())
        raise UserError(f"a model is told captions or labels, not both: leave the labels out with --config.data.label={none}")
    if config.text.tokens:
        from tinygen.data.captions.tokenized import tokenized

        reading = {key: config.text[key] for key in ("tokens", "length", "vocabulary")}
        return tokenized(source, known=known, **reading)
    if config.text.embeddings:
        from tinygen.data.captions.embedded import embedded

        return embedded(source, config.text.embeddings, known)
    return source


def parts(config: Config, codec: Codec) -> Parts:
    """Raises UserError for a model or an objective that does not fit the data, and for a mesh that does not fit the machine."""
    facts = {**codec.facts(), "precision": precision(config)}
    mesh = make_mesh(config.mesh)
    objective = _made(OBJECTIVES, "objective", config, facts)
    check_time(config, objective)
    facts |= {"attention": config.attention, "needs_jvp": objective.needs_jvp, "inputs": objective.inputs, "head": objective.head}
    facts |= {"remat": config.remat, "scan": config.scan}
    check_blocks(config)
    check_conditions(config, codec)

    def create(rngs: nnx.Rngs) -> nnx.Module:
        return _made(MODELS, "model", config, {**facts, "rngs": rngs})

    # Refuse now what the model would refuse later, and what of it no device could hold.
    model = nnx.eval_shape(lambda: create(nnx.Rngs(0)))
    graphdef, params, buffers = split(model)
    check_heads(config, model, mesh.shape["tensor"])
    variables = {"params": params, "buffers": buffers}
    names = [variable_name(path_name(path)) for path, _ in jax.tree_util.tree_leaves_with_path(variables)]
    own = getattr(_row(MODELS, "model", config), "SHARDING", ())
    layout = Layout(mesh, (*check_rules(config.sharding.rules, names), *own), config.sharding.min_size)
    layout.shardings(variables)
    return Parts(codec=codec, objective=objective, create=create, graphdef=graphdef, layout=layout)


def train_step(config: Config, parts: Parts, shardings: TrainState) -> Callable[..., tuple[TrainState, Any]]:
    """The compiled training step. It takes over the memory of the state that it is given."""
    return jax.jit(_train_step(config, parts), donate_argnums=0, out_shardings=(shardings, parts.layout.replicated))


def train_call(config: Config, parts: Parts, shardings: TrainState) -> tuple[Callable[..., tuple[TrainState, Any]], Any]:
    """What the loop calls, jitted as `train_step` is, and the shapes of its second argument: that step and a batch, or as many as
    config.train.steps_per_call of them and their batches.
    """
    if config.train.steps_per_call == 1:
        return train_step(config, parts, shardings), abstract_batch(parts.codec, config.batch_size)
    steps = make_train_steps(_train_step(config, parts))
    jitted = jax.jit(steps, donate_argnums=0, out_shardings=(shardings, parts.layout.replicated))
    return jitted, abstract_call(config, parts)


def _train_step(config: Config, parts: Parts) -> Callable[..., Any]:
    keys = {"seed": config.seed, "ema_decay": config.ema.decay, "accumulate": config.optim.accumulate}
    return make_train_step(parts.graphdef, parts.objective, *optimizer(config), **keys)


def optimizer(config: Config) -> tuple[Any, optim.Schedule]:
    """The recipe's Optax chain and its schedule."""
    keys, schedule = config.optim, optim.make_schedule(**schedule_keys(config))
    return optim.make_optimizer(schedule, b1=keys.b1, b2=keys.b2, eps=keys.eps, weight_decay=keys.weight_decay, clip=keys.clip), schedule


def schedule_keys(config: Config) -> dict[str, Any]:
    """The keywords of `optim.make_schedule`."""
    keys = {key: config.optim[key] for key in ("lr", "schedule", "warmup", "decay_steps", "final_lr")}
    return keys | {"decay_steps": keys["decay_steps"] or config.train.steps}


def abstract_batch(codec: Codec, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a training batch."""
    return {key: jax.ShapeDtypeStruct((batch_size, *field.shape), field.dtype) for key, field in codec.spec.items()}


def abstract_held_out(codec: Codec, size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a batch of `DataSource.epoch`."""
    return abstract_batch(codec, size) | {"weight": jax.ShapeDtypeStruct((size,), "float32")}


def abstract_call(config: Config, parts: Parts) -> Call:
    """The shapes of a call's batches, and where they stand: each split as a batch is."""
    layout = parts.layout
    split_rows = NamedSharding(layout.mesh, PartitionSpec(None, *layout.batch.spec))
    batches = {
        key: jax.ShapeDtypeStruct((config.train.steps_per_call, *leaf.shape), leaf.dtype, sharding=split_rows)
        for key, leaf in abstract_batch(parts.codec, config.batch_size).items()
    }
    return Call(jax.ShapeDtypeStruct((), "int32", sharding=layout.replicated), batches)


def check_heads(config: Config, model: nnx.Module, tensor: int) -> None:
    """Raises UserError for heads, feed-forwards and experts that do not split evenly, though the width of their products may."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, CausalAttention):
            for key, heads in {"kv_heads": module.kv_heads, "heads": module.heads}.items():
                if heads % tensor and (key == "heads" or module.kv_heads != module.heads):
                    raise UserError(f"config.model.{key}={heads} is not a multiple of config.mesh.tensor={tensor}, which splits the heads")
        if isinstance(module, MiniGPT) and (rows := module.tokens.embedding.shape[0]) % tensor:
            cure = f"config.model.vocabulary_multiple={config.model.vocabulary_multiple} must be a multiple of it"
            raise UserError(f"config.mesh.tensor={tensor} splits the embedding, which has {rows} rows: {cure}")
        if isinstance(module, Attention) and module.heads % tensor:
            heads = module.heads
            if heads == config.model.get("heads"):
                raise UserError(f"config.model.heads={heads} is not a multiple of config.mesh.tensor={tensor}, which splits the heads")
            what = f"config.mesh.tensor={tensor} splits attention's heads"
            if "heads" not in config.model:
                raise UserError(f"{what}, and model {config.model.name!r} has {heads}: leave it at 1")
            raise UserError(f"{what}, and a block has {heads}: change config.model.attention_first, mixer_width or text_width")
        if isinstance(module, SwiGLU | GELU) and (hidden := module.up.kernel.shape[1]) % tensor:
            cure = f"config.model.mlp_multiple={config.model.mlp_multiple} must be a multiple of it"
            raise UserError(f"config.mesh.tensor={tensor} splits feed-forwards, and a block's has {hidden} hidden features: {cure}")
        if isinstance(module, Experts) and config.model.experts % tensor:
            num = config.model.experts
            raise UserError(f"config.model.experts={num} is not a multiple of config.mesh.tensor={tensor}, which splits them")


def check_time(config: Config, objective: Objective) -> None:
    """Raises UserError for a model whose embedding turns too fast in an objective's times."""
    most, scale = objective.max_time_scale, config.model.get("time_scale", 0.0)
    if scale > most:
        wanted = f"objective {config.objective.name!r} wants {most:g} or less, such as --config.model.time_scale={min(most, 16):g}"
        raise UserError(f"config.model.time_scale={scale}: {wanted}")


def check_blocks(config: Config) -> None:
    """Raises UserError for keys about a stack of blocks where the model has none: they would do nothing."""
    wanted = inspect.signature(_row(MODELS, "model", config).__init__).parameters
    for key, off in {"remat": "none", "scan": 0, "attention": "auto"}.items():
        if config[key] != off and key not in wanted:
            raise UserError(f"config.{key}={config[key]}: model {config.model.name!r} has no such choice. Leave it at {off!r}")


def check_conditions(config: Config, codec: Codec) -> None:
    """Raises UserError for a condition that the model cannot be given."""
    arguments = inspect.signature(_row(MODELS, "model", config).__init__).parameters
    for each in codec.conditions:
        if each.fact and each.fact not in arguments:
            raise UserError(each.unread(config.model.name))


def check_batch_size(config: Config, layout: Layout) -> None:
    """Raises UserError for a batch that does not split over the devices."""
    micro, multiple = config.batch_size // config.optim.accumulate, layout.batch_multiple
    if micro % multiple:
        divided = f" / optim.accumulate={config.optim.accumulate}" if config.optim.accumulate > 1 else ""
        what = f"config.batch_size={config.batch_size}{divided}"
        raise UserError(f"{what} is not a multiple of the {multiple} devices of mesh.data x mesh.fsdp that split a batch")


def precision(config: Config) -> str:
    """The one that config.precision names, or for "auto" the backend's best."""
    return best_precision(jax.default_backend()) if config.precision == "auto" else config.precision


def _row(table: Mapping[str, Callable[..., Any]], section: str, config: Config) -> Callable[..., Any]:
    name = config[section].name
    if name not in table:
        raise unknown(section, name, table)
    return table[name]


def _made(table: Mapping[str, Callable[..., Any]], section: str, config: Config, facts: Mapping[str, Any]) -> Any:
    """The row's constructor called with the config's keywords and those of the facts that it names."""
    constructor = _row(table, section, config)
    keywords = {key: value for key, value in config[section].to_dict().items() if key not in ("name", *COMMON.get(section, ()))}
    # A module's class hides its constructor's signature behind (*args, **kwargs).
    function = constructor.__init__ if isinstance(constructor, type) else constructor
    wanted = [name for name in inspect.signature(function).parameters if name != "self"]
    missing = [name for name in wanted if name not in keywords and name not in facts]
    if missing:
        raise UserError(f"{section} {config[section].name!r} needs {', '.join(missing)}, which data set {config.data.name!r} does not have")
    return constructor(**keywords, **{name: facts[name] for name in wanted if name in facts})
