"""MNIST digits by flow matching: the ConvNeXt of convnext_mnist_imf.py, as the baseline that takes fifty steps.

Data: 5,000 MNIST digits, 28x28, in the package
Draws: digits by class in fifty evaluations, by the same network
Time: 32 minutes

    tinygen train --config=convnext_mnist_fm

1.4M parameters, 0.56M fewer: the same blocks without inputs for span and guidance and without a second prediction. Timed on two busy CPU
cores (9,000 steps of 64 take about as long as 5,000 of improved MeanFlow). 500 samples of fifty evaluations (twelve steps of Heun with
guidance 2): 100 % are classified as the requested class, pixel spread 0.93 and distance to the nearest training image 0.95 of real
digits' (scripts/compare/score_digits.py).

Times t are distributed as in the other recipe, so that held-out losses compare: velocity_loss there, loss here. `:grouped` uses XLA's
depthwise convolution instead of matrix products.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits"),
        batch_size=64,
        model=dict(name="convnext", patch=2, widths=(64, 128), depths=(2, 4)),
        objective=dict(name="flow", t_mean=0.0, t_std=1.6, sampler="heun", nfe=50, guidance=2.0),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.999),
        train=dict(preview_num=70, steps=9000, preview_every=1500, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        grouped=dict(model=dict(depthwise="convolution")),
        smoke=dict(
            batch_size=16,
            model=dict(widths=(16, 32), depths=(1, 1), condition_width=32),
            objective=dict(nfe=8),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
