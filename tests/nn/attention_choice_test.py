"""Which form of attention is taken, what is said of it, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tinygen import build
from tinygen.distributed.mesh import make_mesh
from tinygen.errors import UserError
from tinygen.nn import attention as module
from tinygen.nn.attention import attention, choose
from tinygen.training import describe

METHODS = ("plain", "blockwise")  # those that a CPU can compute
LIMIT = module.LARGEST_SCORES
CUDA = dict(backend="cuda", precision="bfloat16", scores=2**30, head_size=64, segments=False, needs_jvp=False)


@pytest.mark.parametrize(
    ("changes", "method", "why"),
    [
        ({}, "cudnn", ""),
        (dict(scores=1), "cudnn", ""),
        (dict(needs_jvp=True), "blockwise", "no forward mode"),
        (dict(needs_jvp=True, scores=LIMIT), "plain", "no forward mode"),
        (dict(precision="float32"), "blockwise", "precision is float32"),
        (dict(precision="bfloat16_activations"), "cudnn", ""),
        (dict(head_size=36), "blockwise", "heads of 36"),
        (dict(head_size=136), "blockwise", "heads of 136"),
        (dict(head_size=128), "cudnn", ""),
        (dict(segments=True), "blockwise", "no segments"),
        (dict(segments=True, scores=LIMIT), "plain", "no segments"),
        (dict(backend="rocm"), "blockwise", "would take 1.0 GiB"),
        (dict(backend="tpu"), "blockwise", "would take 1.0 GiB"),
        (dict(backend="tpu", scores=LIMIT), "plain", "at most 256 MiB"),
        (dict(backend="cpu", scores=LIMIT + 1), "blockwise", "would take 0.3 GiB"),
        (dict(backend="cpu", scores=LIMIT, needs_jvp=True), "plain", "at most 256 MiB"),
    ],
    ids=str,
)
def test_the_choice_goes_by_machine_precision_heads_mask_forward_mode_and_the_size_of_the_scores(changes, method, why):
    chosen, said = choose("auto", **(CUDA | changes))
    assert chosen == method
    assert why in said
    for explicit in METHODS:
        assert choose(explicit, **(CUDA | changes))[0] == explicit


def test_the_scores_are_counted_on_a_device():
    sizes = []
    q = jax.ShapeDtypeStruct((8, 16, 4, 8), jnp.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "choose", lambda method, **facts: (sizes.append(facts["scores"]), ("plain", ""))[1])
        for mesh in ((1, 1, 1), (2, 2, 2)):
            with jax.set_mesh(make_mesh(dict(zip(("data", "fsdp", "tensor"), mesh, strict=True)), jax.devices()[: np.prod(mesh)])):
                jax.eval_shape(lambda q, k, v: attention(q, k, v, precision="float32"), q, q, q)
    assert sizes == [4 * 8 * 4 * 16 * 16, 4 * 8 * 4 * 16 * 16 // 8]


def test_the_choice_is_said_once_however_often_it_is_traced(monkeypatch):
    lines = []
    monkeypatch.setattr(module.logging, "info", lambda text, *values: lines.append(text % values))
    module.announce.cache_clear()
    monkeypatch.setattr(module, "LARGEST_SCORES", 2**20)
    for L, S in ((64, 64), (64, 64), (4096, 4096), (64, 16)):
        q, k = (jax.ShapeDtypeStruct((2, length, 2, 8), jnp.float32) for length in (L, S))
        jax.eval_shape(lambda q, k: attention(q, k, k, precision="float32"), q, k)
    assert lines == [
        "attention: plain for 64 queries and keys (scores take at most 1 MiB)",
        "attention: blockwise for 4096 queries and keys (scores would take 0.2 GiB)",
        "attention: plain for 64 queries and 16 keys (scores take at most 1 MiB)",
    ]


@pytest.mark.parametrize(
    ("changes", "platform", "needs_jvp", "message"),
    [
        (dict(attention="flash"), "cpu", False, r"unknown config.attention 'flash'.*auto, blockwise, cudnn, plain"),
        (dict(attention="blokwise"), "cpu", False, r"did you mean 'blockwise'\?"),
        (dict(attention="cudnn"), "cpu", False, r"needs an NVIDIA GPU, and this is a CPU. Use config.attention=auto"),
        (dict(attention="cudnn", precision="float32"), "cuda", False, r"config.precision is float32"),
        (dict(attention="cudnn", precision="bfloat16"), "cuda", True, r"no forward mode \(JVP\)"),
        (dict(attention="cudnn", precision="bfloat16", model=dict(width=24, heads=2)), "cuda", False, r"heads of 12 features"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_when_the_parts_are_made(tiny, monkeypatch, changes, platform, needs_jvp, message):
    monkeypatch.setattr(module, "platform", lambda: platform)
    monkeypatch.setattr(build.OBJECTIVES["flow"], "needs_jvp", needs_jvp)
    config = tiny(**changes)
    with pytest.raises(UserError, match=message):
        build.parts(config, build.data_source(config).codec)


def test_the_model_is_told_the_method_and_the_objectives_need(tiny, monkeypatch):
    monkeypatch.setattr(build.OBJECTIVES["flow"], "needs_jvp", True)
    config = tiny(attention="blockwise")
    parts = build.parts(config, build.data_source(config).codec)
    layer = nnx.eval_shape(lambda: parts.create(nnx.Rngs(0))).blocks[0].attention
    assert (layer.method, layer.needs_jvp) == ("blockwise", True)


@pytest.mark.slow
def test_a_description_says_the_choice(tiny, monkeypatch):
    module.announce.cache_clear()
    lines = []
    monkeypatch.setattr(module.logging, "info", lambda text, *values: lines.append((module.logging.get_verbosity(), text % values)))
    module.logging.set_verbosity(module.logging.WARNING)
    assert describe.main(tiny(batch_size=8, mesh=dict(data=8))) == 0
    assert lines == [(module.logging.INFO, "attention: plain for 4 queries and keys (scores take at most 256 MiB)")]
