"""A ConvNeXt as small as can be, for several test modules."""

from flax import nnx

from tinygen.models.convnext import ConvNeXt

SMALL = dict(
    shape=(8, 8, 3), classes=3, patch=2, widths=(8, 12), depths=(1, 2), side=3, expansion=2, condition_width=16, depthwise="auto",
    time_scale=1000.0, inputs=(), head=False, precision="float32", remat="none",
)  # fmt: skip


def make(**changes):
    return ConvNeXt(**(SMALL | changes), rngs=nnx.Rngs(0))


def abstract(**changes):
    """(graphdef, state of shapes): a model of which nothing is computed."""
    return nnx.split(nnx.eval_shape(lambda: make(**changes)))
