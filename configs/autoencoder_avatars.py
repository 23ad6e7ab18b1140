"""A small autoencoder for latent diffusion: drawn faces, 64x64, to latents of 16x16x4 and back.

Data: 20,000 drawn faces, 64x64
Draws: each face beside its reconstruction from 16x16x4 latents
Time: 20 minutes

    tinygen train --config=autoencoder_avatars

682k parameters; timed on two very busy CPU cores (1,500 steps of 8; 6.4 minutes of processor time). 1,000 steps give 24.7 dB on the
128 held-out faces, 1,500 steps 26.1 dB (averaged weights; mean absolute error 0.050, where one level of a pixel is 0.008): colours,
outlines, mouths and glasses are right, thin lines slightly soft. samples/<step>-reconstructions.png shows each face to the left of its
reconstruction. 1,500 steps of 8 see 12,000 of the 19,000 faces: more steps improve it further.

64x64x3 is 12,288 values, 16x16x4 is 1,024. A weight of 1e-6 on 3,400 nats an image is 0.003 of the loss, and keeps the latents
near a standard deviation of 1.3 with noise of 0.06.
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
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, eval_num=8, preview_every=10, preview_num=8, checkpoint_every=10),
        ),
    )
