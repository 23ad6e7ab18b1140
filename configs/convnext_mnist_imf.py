"""MNIST digits in one step: a ConvNeXt learns by improved MeanFlow.

tinygen train --config=configs/convnext_mnist_imf.py
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits"),
        batch_size=64,
        model=dict(name="convnext", patch=2, widths=(64, 128), depths=(2, 4), time_scale=1.0),
        objective=dict(name="improved_meanflow", t_mean=0.0, t_std=1.6, power=0.5, omega_max=4.0, guidance=1.5),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.999),
        train=dict(preview_num=70, steps=3000, preview_every=1000, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        meanflow=dict(objective=dict(name="meanflow", t_mean=0.0, t_std=1.6, power=0.5, kappa=1 / 3)),
        unguided=dict(objective=dict(omega_max=1.0, guidance=1.0)),
        smoke=dict(
            batch_size=16,
            model=dict(widths=(16, 32), depths=(1, 1), condition_width=32),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )


def sweep() -> dict[str, dict]:
    """Questions, each a change of the recipe as it stands: scripts/compare_recipes.py --sweep=configs/convnext_mnist_imf.py.

    At equal steps; a smaller batch sees fewer images. Compare raw_loss and velocity_loss: power and offset change the scale of the loss.
    """
    return {
        "lr=5e-4": dict(optim=dict(lr=5e-4)),
        "lr=1e-3": dict(optim=dict(lr=1e-3)),
        "condition_width=64": dict(model=dict(condition_width=64)),
        "condition_width=128": dict(model=dict(condition_width=128)),
        "condition_width=512": dict(model=dict(condition_width=512)),
        "batch_size=16": dict(batch_size=16),
        "batch_size=32": dict(batch_size=32),
        "power=0": dict(objective=dict(power=0.0)),
        "power=1": dict(objective=dict(power=1.0)),
        "offset=1e-3": dict(objective=dict(offset=1e-3)),
        "offset=1": dict(objective=dict(offset=1.0)),
        "equal=0.25": dict(objective=dict(equal=0.25)),
        "equal=0.75": dict(objective=dict(equal=0.75)),
    }
