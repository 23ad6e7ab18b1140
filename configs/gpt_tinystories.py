"""miniGPT on TinyStories (Eldan & Li 2023, arXiv 2305.07759), in the sizes of JAX's miniGPT tutorial.

Data: a text file of yours, such as TinyStories
Draws: stories
Time: a GPU or TPU

    tinygen train --config=gpt_tinystories --config.data.path=TinyStories.txt       # eight devices, 4 x 2
    tinygen train --config=gpt_tinystories:one --config.data.path=TinyStories.txt   # any number of devices, data parallel
    tinygen sample --ckpt=runs/gpt_tinystories --prompt="Once upon a time"

Any UTF-8 file works whose documents are separated by <|endoftext|>; `:smoke` reads this one. GPT-2's tokens need pip install
"tinygen[gpt2]". A BPE of 4,096 tokens trained on the file is enough for such stories, and makes the model less than a fifth as large:
--config.data.tokenizer=bpe --config.data.vocabulary=4096.

29.0M parameters, 3.2M of them in the blocks: 50,257 tokens, padded to 50,304, take 12.9M in the embedding and as many in the output
layer. 2.1 TFLOPs per step of 64 windows, 8.2 of 256; 222 MiB of state per device on 4 x 2 (442 on 8 x 1): for a GPU or a TPU slice.
On two CPU cores a step of --config.batch_size=8 takes 1.5 s.

7,200 steps of 256 windows of 256 tokens see the 2.1M stories, some 470M tokens, once.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="text", tokenizer="gpt2", length=256),
        batch_size=256,
        model=dict(
            name="minigpt",
            width=256,
            depth=8,
            heads=8,
            positions="learned",
            feed_forward="gelu",
            mlp_ratio=1.0,
            tied=False,
            qk_norm=False,
            dropout=0.1,
        ),
        objective=dict(name="autoregressive", top_k=10),
        optim=dict(lr=1e-3, warmup=200, b2=0.95, weight_decay=0.1),
        ema=dict(decay=0.999),
        mesh=dict(data=4, tensor=2),
        train=dict(steps=7200, preview_every=500, preview_num=4, eval_every=500, eval_num=2048, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        one=dict(mesh=dict(data=-1, tensor=1)),
        smoke=dict(
            data=dict(path=__file__, tokenizer="bpe", vocabulary=300, length=32),
            batch_size=8,
            model=dict(width=32, depth=2, heads=2),
            objective=dict(new_tokens=16),
            mesh=dict(data=-1, tensor=1),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, eval_num=8, preview_every=10, preview_num=4, checkpoint_every=10),
        ),
    )
