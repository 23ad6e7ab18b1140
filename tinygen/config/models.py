"""The keywords of models, by name: the rows that `tinygen.build` makes."""

from tinygen.config.key import OWN, RESUME, STAGE, Section, key

TIME_SCALE = "of t, span and guidance in their sincos embeddings: 1000 for flow matching, 16 for MeanFlow, 1 for EDM"

MODELS: dict[str, Section] = {
    "microdit": Section(
        "a transformer on patches, which may drop most of them in training",
        patch=key(2, "pixels per side of a patch; zeros fill up the last ones where it does not divide height and width"),
        width=key(256, "features per token; a multiple of heads"),
        depth=key(8, "blocks"),
        heads=key(4, "attention heads; width / heads is even"),
        mlp_ratio=key(4.0, "SwiGLU's hidden size is 2/3 x ratio x width, rounded up to mlp_multiple"),
        mlp_ratio_first=key(0.0, "ratio of the first block; it rises linearly to mlp_ratio in the last; 0: mlp_ratio throughout"),
        attention_first=key(1.0, "share of the heads that the first block has, rising likewise"),
        mlp_multiple=key(64, "suits the device's tiles: 64 on a CPU, 256 on GPU and TPU"),
        mask=key(0.0, "share of patches dropped in training, which neither blocks nor loss see; 0: none. Sampling drops none", STAGE),
        mixer_depth=key(0, "blocks before the mask, which see all patches"),
        mixer_width=key(0, "features per token there; a multiple of width / heads; 0: width"),
        experts=key(0, "feed-forwards of every second block, which choose their patches; 0: one that takes all"),
        capacity=key(2.0, "experts per patch, on average"),
        positions=key(
            "sincos",
            "sincos: added to patches; rope: turns queries and keys by rows and columns, and width / heads is a multiple of 4",
            OWN,
            choices=("sincos", "rope"),
        ),
        position_grid=key(0, "rows of patches that positions span, for more pixels than the first stage had; 0: all there are", STAGE),
        text_depth=key(2, "blocks of self-attention over a caption, before all other blocks attend to it; where there are captions"),
        text_width=key(0, "features per token of a caption; a multiple of width / heads; 0: width"),
        adaln=key(
            "block",
            "block: a modulation layer per block; shared: one for all, plus a learned table per block",
            choices=("block", "shared"),
        ),
        qk_norm=key(True, "RMS norm of queries and keys, per head"),
        time_scale=key(1000.0, TIME_SCALE),
    ),
    "convnext": Section(
        "a ConvNeXt at one or two resolutions, for images and sound",
        patch=key(2, "pixels per side of what the first layer takes together; zeros fill up the last ones where it does not divide a side"),
        widths=key((96, 192), "features at the first resolution and, where there are two values, at half of it", OWN),
        depths=key((2, 6), "blocks per resolution; the first has as many again on the way back"),
        side=key(7, "of the depthwise kernels, odd"),
        expansion=key(4, "hidden features of a block, as a multiple of its width"),
        condition_width=key(256, "features of the conditioning: time, span, label, guidance"),
        depthwise=key(
            "auto",
            "auto: by machine; convolution: grouped; products: for backends without grouped convolution",
            RESUME,
            choices=("auto", "convolution", "products"),
        ),
        time_scale=key(1000.0, TIME_SCALE),
    ),
    "mlp": Section(
        "a perceptron",
        hidden=key(1024, "features per hidden layer; a multiple of mesh.tensor"),
        depth=key(2, "hidden layers", OWN),
        dropout=key(0.1, "share of hidden features dropped in training", STAGE),
    ),
    "classifier": Section(
        "a residual network that predicts labels",
        width=key(32, "features of the first stage, doubled in each later one; a multiple of groups", OWN),
        stages=key(3, "each halves height and width"),
        depth=key(1, "residual blocks per stage", OWN),
        groups=key(8, "groups of features that are normalized together"),
        dropout=key(0.1, "share of the last features set to zero in training", STAGE),
    ),
    "minigpt": Section(
        "a language model: a causal transformer",
        width=key(256, "features per token; a multiple of heads"),
        depth=key(6, "blocks"),
        heads=key(8, "attention heads; width / heads is even"),
        kv_heads=key(0, "heads of keys and values, each for heads / kv_heads of the queries; 0: heads"),
        feed_forward=key("swiglu", "the kind of feed-forward", choices=("swiglu", "gelu")),
        mlp_ratio=key(4.0, "hidden features of gelu are ratio x width, of swiglu 2/3 of that, rounded up to mlp_multiple"),
        mlp_multiple=key(64, "suits the device's tiles: 64 on a CPU, 256 on GPU and TPU"),
        positions=key(
            "rope",
            "rope: turns queries and keys, which extends past the window; learned: added, as in GPT-2",
            OWN,
            choices=("rope", "learned"),
        ),
        tied=key(True, "the output layer is the embedding's transpose"),
        dropout=key(0.0, "share of features set to zero in training, of the embedding and of every block's two updates", STAGE),
        qk_norm=key(True, "RMS norm of queries and keys, per head"),
        vocabulary_multiple=key(64, "rows of the embedding are rounded up to this, for the device's tiles and for mesh.tensor"),
    ),
    "autoencoder": Section(
        "images to latents and back, as in latent diffusion",
        widths=key(
            (32, 64, 128), "features per stage, from the whole image on; all but the last halve its sides. Multiples of groups", OWN
        ),
        depth=key(1, "residual blocks per stage of the encoder; the decoder's stages have one more", OWN),
        latent=key(4, "channels of a latent"),
        groups=key(8, "groups of features that are normalized together; public ones: 32, widths=(128, 256, 512, 512), depth=2"),
    ),
}
