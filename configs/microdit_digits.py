"""MNIST digits, 28x28, by class, as MicroDiT trains: three quarters of the patches dropped, then a short stage that sees all of them.

    tinygen train --config=configs/microdit_digits.py                                                  # masked
    tinygen train --config=configs/microdit_digits.py:unmasked --config.init.ckpt=runs/microdit_digits # then from there, whole images
    tinygen train --config=configs/microdit_digits.py:dense                                            # the same model, never masked
    tinygen train --config=configs/microdit_digits.py:moe                                              # eight experts in every second block
    tinygen train --config=configs/microdit_digits.py:edm                                              # the authors' objective

2.6M parameters. 28x28 in patches of 4 is 49 tokens: two blocks of the mixer see all of them, six of the backbone the 12 that are kept.

What masking saves, measured on two CPU cores: with two blocks of mixer and twelve of backbone, 256 wide, on 256 tokens, a step takes
0.35 of the time (scripts/bench.py step --width=256 --depth=12 --set model.mixer_depth=2 --against model.mask=0.75).
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits"),
        batch_size=32,
        model=dict(name="microdit", patch=4, width=128, depth=6, heads=2, mask=0.75, mixer_depth=2),
        objective=dict(name="flow", guidance=2.0),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.999),
        train=dict(steps=5600, preview_num=70, preview_every=800, eval_every=800, checkpoint_every=400),
    )
    return vary(
        config,
        variant,
        unmasked=dict(
            model=dict(mask=0.0),
            optim=dict(lr=5e-4),
            train=dict(steps=800, preview_every=200, eval_every=200, checkpoint_every=200),
        ),
        dense=dict(model=dict(mask=0.0), train=dict(steps=3200)),
        edm=dict(model=dict(time_scale=1.0), objective=dict(name="edm", sigma_data=0.6, guidance=2.0)),
        moe=dict(model=dict(experts=8, capacity=1.0)),
        smoke=dict(
            batch_size=16,
            model=dict(width=32, depth=2, heads=2, mixer_depth=1, experts=4),
            objective=dict(nfe=8),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
