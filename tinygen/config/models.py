"""Keys of the models, by name: the rows of `model` that `tinygen.build` constructs."""

from typing import Any

from tinygen.config.key import OWN, RESUME, STAGE, Section, key

TIME_SCALE = "factor of t, span and guidance in sincos embeddings: 1000 for flow matching, 16 for MeanFlow, 1 for EDM"

PYRAMID: dict[str, Any] = dict(  # of an encoder and a decoder of images
    widths=key((32, 64, 128), "features per stage, multiples of groups; all but the last downsample by 2", OWN),
    depth=key(1, "residual blocks per encoder stage; decoder stages have one more", OWN),
    groups=key(8, "groups of the group norms; public autoencoders: 32, with widths=(128, 256, 512, 512), depth=2"),
)

MODELS: dict[str, Section] = {
    "microdit": Section(
        "a diffusion transformer on patches, optionally masked in training",
        patch=key(2, "pixels per side of a patch; images are zero-padded to a multiple"),
        width=key(256, "features per token; a multiple of heads"),
        depth=key(8, "blocks"),
        heads=key(4, "attention heads; width / heads is even"),
        mlp_ratio=key(4.0, "SwiGLU's hidden size is 2/3 x ratio x width, rounded up to mlp_multiple"),
        mlp_ratio_first=key(0.0, "ratio of the first block, interpolated linearly to mlp_ratio in the last; 0: mlp_ratio throughout"),
        attention_first=key(1.0, "share of the heads in the first block, interpolated likewise"),
        mlp_multiple=key(64, "alignment with the device's tiles: 64 on CPU, 256 on GPU and TPU"),
        mask=key(0.0, "share of patches masked in training, excluded from the backbone and the loss; 0: none", STAGE),
        mixer_depth=key(0, "blocks of the patch mixer, before masking"),
        mixer_width=key(0, "features per token in the patch mixer; a multiple of width / heads; 0: width"),
        experts=key(0, "experts in every second block (expert-choice routing); 0: a dense feed-forward"),
        capacity=key(2.0, "mean experts per patch"),
        positions=key(
            "sincos",
            "sincos: added to patches; rope: rotary over rows and columns, needs width / heads to be a multiple of 4",
            OWN,
            choices=("sincos", "rope"),
        ),
        position_grid=key(0, "rows of patches that positions span, to train on larger images; 0: the actual rows", STAGE),
        text_depth=key(2, "blocks of the caption encoder, for data with captions"),
        text_width=key(0, "features per token of a caption; a multiple of width / heads; 0: width"),
        adaln=key(
            "block",
            "block: a modulation layer per block; shared: one for all blocks, plus a learned table per block",
            choices=("block", "shared"),
        ),
        qk_norm=key(True, "RMS norm of queries and keys, per head"),
        time_scale=key(1000.0, TIME_SCALE),
    ),
    "convnext": Section(
        "a ConvNeXt at one or two resolutions, for images and sound",
        patch=key(2, "pixels per side of a patch of the first layer; inputs are zero-padded to a multiple"),
        widths=key((96, 192), "features per resolution: one value, or two for an hourglass at full and half resolution", OWN),
        depths=key((2, 6), "blocks per resolution; an hourglass has as many again of the first after upsampling"),
        side=key(7, "size of the depthwise kernels, odd"),
        expansion=key(4, "hidden features of a block, as a multiple of its width"),
        condition_width=key(256, "features of the conditioning: time, span, label, guidance"),
        depthwise=key(
            "auto",
            "auto: by hardware; convolution: grouped convolution; products: matrix products, faster on CPU",
            RESUME,
            choices=("auto", "convolution", "products"),
        ),
        time_scale=key(1000.0, TIME_SCALE),
    ),
    "mlp": Section(
        "a multilayer perceptron",
        hidden=key(1024, "features per hidden layer; a multiple of mesh.tensor"),
        depth=key(2, "hidden layers", OWN),
        dropout=key(0.1, "dropout rate of hidden features", STAGE),
    ),
    "classifier": Section(
        "a residual network that predicts labels",
        width=key(32, "features of the first stage, doubled in each later one; a multiple of groups", OWN),
        stages=key(3, "number of stages; each halves height and width"),
        depth=key(1, "residual blocks per stage", OWN),
        groups=key(8, "groups of the group norms"),
        dropout=key(0.1, "dropout rate of the features before the last layer", STAGE),
    ),
    "hourglass": Section(
        "a bidirectional transformer over tokens, with most blocks on a shortened sequence",
        width=key(256, "features per token; a multiple of heads"),
        depth=key((2, 8, 2), "blocks before, in and after the valley", OWN),
        shorten=key(4, "places per side of a block that becomes one token of the valley; 1: no shortening"),
        resampling=key(
            "linear",
            "linear: a layer on the features of a block; attention: and attention between blocks and places",
            choices=("linear", "attention"),
        ),
        heads=key(4, "attention heads; width / heads is a multiple of 4, or of 2 for text"),
        mlp_ratio=key(4.0, "SwiGLU's hidden size is 2/3 x ratio x width, rounded up to mlp_multiple"),
        mlp_multiple=key(64, "alignment with the device's tiles: 64 on CPU, 256 on GPU and TPU"),
        tied=key(True, "tie the output layer to the embedding"),
        text_depth=key(2, "blocks of the caption encoder, for data with captions"),
        text_width=key(0, "features per token of a caption; a multiple of width / heads; 0: width"),
        adaln=key(
            "block",
            "block: a modulation layer per block; shared: one for all blocks, plus a learned table per block",
            choices=("block", "shared"),
        ),
        qk_norm=key(True, "RMS norm of queries and keys, per head"),
    ),
    "minigpt": Section(
        "a decoder-only transformer language model",
        width=key(256, "features per token; a multiple of heads"),
        depth=key(6, "blocks"),
        heads=key(8, "attention heads; width / heads is even"),
        kv_heads=key(0, "key and value heads for grouped-query attention; divides heads; 0: heads"),
        feed_forward=key("swiglu", "type of the feed-forward", choices=("swiglu", "gelu")),
        mlp_ratio=key(4.0, "hidden features are ratio x width for gelu and 2/3 of that for swiglu, rounded up to mlp_multiple"),
        mlp_multiple=key(64, "alignment with the device's tiles: 64 on CPU, 256 on GPU and TPU"),
        positions=key(
            "rope", "rope: rotary, works past the training window; learned: added, as in GPT-2", OWN, choices=("rope", "learned")
        ),
        tied=key(True, "tie the output layer to the embedding"),
        dropout=key(0.0, "dropout rate of the embedding and of the residual updates", STAGE),
        qk_norm=key(True, "RMS norm of queries and keys, per head"),
        vocabulary_multiple=key(64, "the embedding's rows are padded to a multiple of this, for the device's tiles and mesh.tensor"),
    ),
    "autoencoder": Section("a KL autoencoder for images, as in latent diffusion", **PYRAMID, latent=key(4, "channels of a latent")),
    "tokenizer": Section(
        "an autoencoder for images whose latents are tokens, as in VQGAN",
        **PYRAMID,
        attends=key(False, "attention after each block of the lowest resolution, as in VQGAN's f16 models; otherwise once in the middle"),
        quantizer=key("fsq", "fsq: rounds each feature to its levels; vq: a codebook of moving averages", choices=("fsq", "vq")),
        levels=key((8, 5, 5, 5), "fsq: levels per feature, 2 or more; their product is the number of codes"),
        codes=key(1024, "vq: codes of the codebook"),
        code_width=key(16, "vq: features of a code"),
        stages=key(1, "vq: codebooks, each for what the ones before leave over; an image has as many tokens per place", OWN),
        code_decay=key(0.99, "vq: decay of the codebook's moving averages per batch, or micro-batch", STAGE),
    ),
}
