"""The keywords of models, by name: the rows that `tinygen.build` makes."""

from typing import Any

from tinygen.keys.marks import own, resume, stage

MODELS: dict[str, dict[str, Any]] = {
    "microdit": dict(
        patch=2,  # pixels a side of a patch; where it does not divide height and width, the last patches are filled up with zeros
        width=256,  # features a token; a multiple of heads
        depth=8,  # blocks
        heads=4,  # attention heads; width / heads is even
        mlp_ratio=4.0,  # hidden size of SwiGLU is 2/3 x ratio x width, rounded up to mlp_multiple
        mlp_ratio_first=0.0,  # of the first block, from which ratios rise in a straight line to mlp_ratio in the last; 0 = all have that
        attention_first=1.0,  # share of the heads that the first block has, likewise
        mlp_multiple=64,  # what the device's tiles like: 64 on a CPU, 256 on GPU and TPU
        mask=stage(0.0),  # share of an image's patches that blocks do not see in training, nor the loss; 0 = they see all. None in sampling
        mixer_depth=0,  # blocks before that, which see all patches
        mixer_width=0,  # features a token there; a multiple of width / heads; 0 = width
        experts=0,  # feed-forwards of every second block, which choose their patches; 0 = one that takes all
        capacity=2.0,  # experts that a patch has on average
        positions=own("sincos"),  # sincos: added to patches | rope: turns queries and keys by rows and columns; width / heads is 4 x n
        position_grid=stage(0),  # rows of patches that positions span, for more pixels than the first stage had; 0 = all that there are
        text_depth=2,  # blocks of self-attention over a caption, before all other blocks attend to it; where there are captions
        text_width=0,  # features of its tokens; a multiple of width / heads; 0 = width
        adaln="block",  # block: a modulation layer a block | shared: one for all, plus a learned table a block
        qk_norm=True,  # RMS norm of queries and keys, a head
        time_scale=1000.0,  # of t, span and guidance in their sincos embeddings: 1000 for flow matching, 16 for MeanFlow, 1 for EDM
    ),
    "convnext": dict(
        patch=2,  # pixels a side of what the first layer takes together; zeros fill up the last of them where it does not divide a side
        widths=own((96, 192)),  # features at the first resolution and, where there are two values, at half of it
        depths=(2, 6),  # blocks there; the first resolution has as many again on the way back
        side=7,  # of the depthwise kernels, odd
        expansion=4,  # hidden features of a block, times its width
        condition_width=256,  # features of what the model is told: time, span, label, guidance
        depthwise=resume("auto"),  # auto (by machine) | convolution (grouped) | products (for backends without grouped convolution)
        time_scale=1000.0,  # of t, span and guidance in their sincos embeddings: 1000 for flow matching, 16 for MeanFlow, 1 for EDM
    ),
    "mlp": dict(
        hidden=1024,  # features of a hidden layer; a multiple of mesh.tensor
        depth=own(2),  # hidden layers
        dropout=stage(0.1),  # share of hidden features dropped in training
    ),
    "classifier": dict(
        width=own(32),  # features of the first stage; each later stage has twice as many as the one before. A multiple of groups
        stages=3,  # each halves height and width
        depth=own(1),  # residual blocks a stage
        groups=8,  # of features that are normalised together
        dropout=stage(0.1),  # share of the last features that is put to zero in training
    ),
    "minigpt": dict(
        width=256,  # features a token; a multiple of heads
        depth=6,  # blocks
        heads=8,  # attention heads; width / heads is even
        kv_heads=0,  # heads of keys and values, each for heads / kv_heads of the queries; 0 = heads
        feed_forward="swiglu",  # swiglu | gelu
        mlp_ratio=4.0,  # hidden features of gelu are ratio x width, of swiglu 2/3 of that, rounded up to mlp_multiple
        mlp_multiple=64,  # what the device's tiles like: 64 on a CPU, 256 on GPU and TPU
        positions=own("rope"),  # rope: queries and keys are turned, which goes on past the window | learned: added, as GPT-2 has it
        tied=True,  # the output layer is the embedding's transpose
        dropout=stage(0.0),  # share of the features put to zero in training, of the embedding and of every block's two updates
        qk_norm=True,  # RMS norm of queries and keys, a head
        vocabulary_multiple=64,  # the embedding has a multiple of as many rows, for the device's tiles and for mesh.tensor
    ),
    "autoencoder": dict(
        widths=own((32, 64, 128)),  # features of a stage, from the whole image on; all but the last halve its sides. Multiples of groups
        depth=own(1),  # residual blocks a stage of the encoder; the decoder's have one more
        latent=4,  # channels of a latent
        groups=8,  # of features that are normalised together; the public ones: 32, widths=(128, 256, 512, 512), depth=2
    ),
}
