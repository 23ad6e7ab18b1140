"""Masked diffusion of text: plays by Shakespeare, written in any order, with gaps filled.

Data: 16 plays, 2 MB, in the package
Draws: text: windows of plays, or a text with its gaps filled
Time: 21 minutes

    tinygen train --config=mdlm_shakespeare
    tinygen sample --ckpt=runs/mdlm_shakespeare --given="ROMEO: {12} love {12}"

7.6M parameters; timed on two CPU cores with AVX-512 and bfloat16 (2,000 steps of 16 windows at 0.63 s). On the held-out Comedy of
Errors and Macbeth, the averaged weights' bound is 2.84 bits per byte after 750 steps, 2.71 after 1,250 (13 minutes) and 2.64 at the
end. Autoregression on the same windows (gpt_shakespeare) reaches 2.28, so predicting in any order costs 0.36 bits per byte here.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="shakespeare", tokenizer="bpe", vocabulary=1024, length=256),
        batch_size=16,
        model=dict(name="hourglass", width=256, depth=(0, 6, 0), shorten=1, heads=4),
        objective=dict(name="discrete", sampler="ancestral", nfe=256, schedule="linear", temperature=0.8),
        optim=dict(lr=3e-3, weight_decay=0.1),
        ema=dict(decay=0.995),
        train=dict(steps=2000, log_every=20, preview_every=500, preview_num=4, eval_every=250, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            data=dict(length=32, vocabulary=300),
            batch_size=8,
            model=dict(width=32, depth=(0, 2, 0)),
            objective=dict(nfe=8),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=4, checkpoint_every=10),
        ),
    )


def sweep() -> dict[str, dict]:
    """Single changes of the recipe, compared at equal steps: scripts/compare/compare_recipes.py --sweep=mdlm_shakespeare."""
    return {
        "length=128": dict(data=dict(length=128), batch_size=32),
        "vocabulary=512": dict(data=dict(vocabulary=512)),
        "tied=False": dict(model=dict(tied=False)),
        "adaln=shared": dict(model=dict(adaln="shared")),
        "lr=1.5e-3": dict(optim=dict(lr=1.5e-3)),
        "lr=6e-3": dict(optim=dict(lr=6e-3)),
        "weight_decay=0.3": dict(optim=dict(weight_decay=0.3)),
    }
