"""MNIST digits, class-conditional."""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits"),
        batch_size=32,
        model=dict(name="microdit", patch=4, width=128, depth=6, heads=2),
        objective=dict(name="flow", guidance=2.0),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.999),
        train=dict(steps=3200, preview_every=800, eval_every=800, checkpoint_every=400),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            batch_size=16,
            model=dict(width=32, depth=2, heads=2),
            objective=dict(nfe=8),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
