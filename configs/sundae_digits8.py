"""Digits of 8x8 pixels and 17 grey levels as tokens, by class: SUNDAE, or masked diffusion with `:mask`.

Data: 1,797 digits, 8x8, in the package
Draws: digits by class
Time: 9 minutes

    tinygen train --config=sundae_digits8
    tinygen train --config=sundae_digits8:mask
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits8", tokens=True),
        batch_size=64,
        model=dict(name="hourglass", width=96, depth=(1, 4, 1), shorten=2, heads=4),
        objective=dict(name="discrete", process="uniform", nfe=64, temperature=0.8, proportion=0.5),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.995),
        train=dict(preview_num=80, steps=2500, preview_every=500, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        mask=dict(objective=dict(process="mask")),
        smoke=dict(
            batch_size=16,
            model=dict(width=32, depth=(1, 1, 1)),
            objective=dict(nfe=8),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
