"""A VQGAN with random weights under its authors' names, and its mathematics written down from those names alone."""

import jax
import jax.numpy as jnp
import numpy as np
import record_autoencoder_goldens as recording

GROUPS = 32


def shapes(widths, depth, codes, width, *, attends):
    """{name: shape} of a tokenizer's arrays as taming-transformers saves them."""
    found = {}

    def layer(name, *shape):
        found[f"{name}.weight"], found[f"{name}.bias"] = shape, shape[:1]

    def block(name, inputs, outputs):
        for part, shape in dict(norm1=[inputs], conv1=[outputs, inputs, 3, 3], norm2=[outputs], conv2=[outputs, outputs, 3, 3]).items():
            layer(f"{name}.{part}", *shape)
        if inputs != outputs:
            layer(f"{name}.nin_shortcut", outputs, inputs, 1, 1)

    def attention(name, features):
        layer(f"{name}.norm", features)
        for part in ("q", "k", "v", "proj_out"):
            layer(f"{name}.{part}", features, features, 1, 1)

    last = len(widths) - 1
    for way, count in (("encoder", depth), ("decoder", depth + 1)):
        layer(f"{way}.conv_in", *((widths[0], 3) if way == "encoder" else (widths[-1], width)), 3, 3)
        features = widths[0] if way == "encoder" else widths[-1]
        for stage in range(last + 1) if way == "encoder" else reversed(range(last + 1)):
            name = f"{way}.{'down' if way == 'encoder' else 'up'}.{stage}"
            for index in range(count):
                block(f"{name}.block.{index}", features, widths[stage])
                features = widths[stage]
                if attends and stage == last:
                    attention(f"{name}.attn.{index}", features)
            if stage != (last if way == "encoder" else 0):
                layer(f"{name}.{'down' if way == 'encoder' else 'up'}sample.conv", features, features, 3, 3)
        block(f"{way}.mid.block_1", widths[-1], widths[-1])
        attention(f"{way}.mid.attn_1", widths[-1])
        block(f"{way}.mid.block_2", widths[-1], widths[-1])
        layer(f"{way}.norm_out", features)
        layer(f"{way}.conv_out", width if way == "encoder" else 3, features, 3, 3)
    layer("quant_conv", width, width, 1, 1)
    layer("post_quant_conv", width, width, 1, 1)
    return found | {"quantize.embedding.weight": (codes, width)}


def arrays(**sizes):
    return recording.weights(shapes(**sizes))


class Reference:
    """encode and decode images [B, 3, H, W] by the arrays of a file, in the order of the authors' code."""

    def __init__(self, arrays, last, depth):
        self.arrays, self.last, self.depth = arrays, last, depth

    def convolution(self, name, x, stride=1, pad=None):
        kernel = self.arrays[f"{name}.weight"]
        pad = kernel.shape[-1] // 2 if pad is None else pad
        pads = [(pad, pad)] * 2 if isinstance(pad, int) else [pad] * 2
        y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), pads, precision=jax.lax.Precision.HIGHEST)
        return y + self.arrays[f"{name}.bias"][:, None, None]

    def norm(self, name, x):
        B, C, H, W = x.shape
        grouped = x.reshape(B, GROUPS, -1)
        normal = (grouped - grouped.mean(-1, keepdims=True)) / jnp.sqrt(grouped.var(-1, keepdims=True) + 1e-6)
        return normal.reshape(x.shape) * self.arrays[f"{name}.weight"][:, None, None] + self.arrays[f"{name}.bias"][:, None, None]

    def block(self, name, x):
        h = self.convolution(f"{name}.conv1", jax.nn.silu(self.norm(f"{name}.norm1", x)))
        h = self.convolution(f"{name}.conv2", jax.nn.silu(self.norm(f"{name}.norm2", h)))
        return h + (self.convolution(f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in self.arrays else x)

    def attention(self, name, x):
        if f"{name}.norm.weight" not in self.arrays:
            return x
        B, C, H, W = x.shape
        h = self.norm(f"{name}.norm", x)
        q, k, v = (self.convolution(f"{name}.{part}", h).reshape(B, C, -1) for part in "qkv")
        with jax.default_matmul_precision("highest"):
            scores = jax.nn.softmax(jnp.einsum("bci,bcj->bij", q, k) * C**-0.5, -1)
            h = jnp.einsum("bij,bcj->bci", scores, v).reshape(x.shape)
        return x + self.convolution(f"{name}.proj_out", h)

    def middle(self, way, x):
        x = self.block(f"{way}.mid.block_1", x)
        return self.block(f"{way}.mid.block_2", self.attention(f"{way}.mid.attn_1", x))

    def stage(self, name, x, count):
        for index in range(count):
            x = self.attention(f"{name}.attn.{index}", self.block(f"{name}.block.{index}", x))
        return x

    def out(self, way, x):
        return self.convolution(f"{way}.conv_out", jax.nn.silu(self.norm(f"{way}.norm_out", x)))

    def encode(self, x):
        """Tokens [B, h, w], and the squared distances to all codes."""
        x = self.convolution("encoder.conv_in", x)
        for stage in range(self.last + 1):
            x = self.stage(f"encoder.down.{stage}", x, self.depth)
            if stage < self.last:
                x = self.convolution(f"encoder.down.{stage}.downsample.conv", x, 2, (0, 1))
        z = self.convolution("quant_conv", self.out("encoder", self.middle("encoder", x)))
        book = self.arrays["quantize.embedding.weight"]
        distances = np.square(np.asarray(z).transpose(0, 2, 3, 1)[..., None, :] - book).sum(-1)
        return distances.argmin(-1), distances

    def decode(self, tokens):
        z = self.arrays["quantize.embedding.weight"][tokens].transpose(0, 3, 1, 2)
        x = self.middle("decoder", self.convolution("decoder.conv_in", self.convolution("post_quant_conv", z)))
        for stage in reversed(range(self.last + 1)):
            x = self.stage(f"decoder.up.{stage}", x, self.depth + 1)
            if stage > 0:
                x = self.convolution(f"decoder.up.{stage}.upsample.conv", jnp.repeat(jnp.repeat(x, 2, 2), 2, 3))
        return self.out("decoder", x)
