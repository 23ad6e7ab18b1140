"""sine

tinygen train --config=configs/fsdp_sine.py
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="sine"),
        batch_size=64,
        model=dict(name="mlp", hidden=1024, depth=2, dropout=0.1),
        objective=dict(name="regression"),
        optim=dict(lr=1e-3, warmup=100, final_lr=1e-5, b2=0.999),
        ema=dict(decay=0.999),
        mesh=dict(data=1, fsdp=-1),
        sharding=dict(min_size=2**16),
        train=dict(steps=20_000, log_every=100, eval_every=500, preview_every=2_000, preview_num=512, checkpoint_every=5_000),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            model=dict(hidden=32),
            sharding=dict(min_size=2**10),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, checkpoint_every=10),
        ),
    )
