"""miniGPT on TinyStories (Eldan & Li 2023), in the sizes of JAX's tutorial.

tinygen train --config=configs/gpt_tinystories.py --config.data.path=TinyStories.txt          # eight devices, 4 x 2
tinygen train --config=configs/gpt_tinystories.py:one --config.data.path=TinyStories.txt      # one, or any number
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
            train=dict(steps=20, log_every=5, eval_every=10, eval_num=8, preview_every=10, preview_num=4, checkpoint_every=10),
        ),
    )
