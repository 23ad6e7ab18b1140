"""Drawn faces, 64x64, into latents of 16x16x4 and back: a small autoencoder of latent diffusion's kind.

tinygen train --config=configs/autoencoder_avatars.py
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="avatars"),
        batch_size=8,
        model=dict(name="autoencoder", widths=(16, 32, 64), depth=1, latent=4, groups=8),
        objective=dict(name="autoencoder", kl_weight=1e-6),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.995),
        train=dict(steps=1500, preview_num=24, preview_every=500, eval_every=500, eval_num=128, checkpoint_every=250),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            data=dict(num=240),
            batch_size=8,
            model=dict(widths=(8, 8, 8)),
            train=dict(steps=20, log_every=5, eval_every=10, eval_num=8, preview_every=10, preview_num=8, checkpoint_every=10),
        ),
    )
