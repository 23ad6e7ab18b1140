"""Digits of 8x8 pixels, class-conditional: the smallest recipe, a minute on two cores."""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits8"),
        batch_size=64,
        model=dict(name="microdit", patch=2, width=96, depth=4, heads=2),
        objective=dict(name="flow", guidance=2.0),
        optim=dict(lr=2e-3, warmup=50),
        ema=dict(decay=0.995),
        train=dict(preview_num=80, steps=1500, preview_every=500, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            batch_size=16,
            model=dict(width=32, depth=2),
            objective=dict(nfe=8),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
