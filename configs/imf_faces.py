"""Faces of pixel art in one step, by the colour of their hair: a transformer learns by improved MeanFlow.

tinygen train --config=configs/imf_faces.py
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="pixel_faces", label="hair_color"),
        batch_size=64,
        model=dict(name="microdit", patch=2, width=96, depth=6, heads=2, time_scale=16.0),
        objective=dict(name="improved_meanflow", t_mean=0.0, t_std=1.6, power=0.5, omega_max=4.0, guidance=1.5),
        optim=dict(lr=2e-3, warmup=50),
        ema=dict(decay=0.995),
        train=dict(preview_num=72, steps=2000, preview_every=500, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            batch_size=16,
            model=dict(width=32, depth=2, heads=4),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=12, checkpoint_every=10),
        ),
    )
