"""MNIST digits in one step: a ConvNeXt learns by improved MeanFlow.

tinygen train --config=configs/convnext_mnist_imf.py
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits"),
        batch_size=64,
        model=dict(name="convnext", patch=2, widths=(96, 192), depths=(2, 6), time_scale=1.0),
        objective=dict(name="improved_meanflow", guidance=2.0),
        optim=dict(lr=1e-3, warmup=100),
        ema=dict(decay=0.999),
        train=dict(preview_num=70, steps=2000, preview_every=500, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            batch_size=16,
            model=dict(widths=(16, 32), depths=(1, 1), condition_width=32),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
