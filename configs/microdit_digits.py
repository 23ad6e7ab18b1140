"""MNIST digits, 28x28, by class, trained as MicroDiT: three quarters of the patches dropped, then a short stage on all of them.

Data: 5,000 MNIST digits, 28x28, in the package
Draws: digits by class, three quarters of the patches dropped in training
Time: 5 minutes

    tinygen train --config=microdit_digits                                                  # masked
    tinygen train --config=microdit_digits:unmasked --config.init.ckpt=runs/microdit_digits # then from there, whole images
    tinygen train --config=microdit_digits:dense                                            # the same model, never masked
    tinygen train --config=microdit_digits:moe                                              # eight experts in every second block
    tinygen train --config=microdit_digits:edm                                              # the authors' objective

2.2M parameters. 28x28 in patches of 2 is 196 tokens: the mixer's two narrow blocks see all of them, the backbone's six the 49 kept. A
masked step takes 0.36 of the time of a dense one, so 1,400 masked and 700 dense steps take as long as 1,200 dense ones (timed on two CPU
cores). In that time, over three seeds (mean ± standard deviation; scripts/compare/compare_recipes.py, `--num=4000
--set objective.nfe=20`):

             steps          held-out loss     Fréchet distance in classify_digits' features, to the training images
    masked   1,400 + 700    0.1718 ± 0.0032   0.0726 ± 0.0037  (0.0768, 0.0702, 0.0707)
    dense    1,200          0.1669 ± 0.0020   0.0769 ± 0.0153  (0.0944, 0.0667, 0.0695)
    moe      1,200          0.1690 ± 0.0039   the same network with eight experts, never masked: no better here, in 1.09 of the time

The split of the time matters, and was tuned on these seeds: 2,500 masked steps and 270 dense ones at half the rate gave 0.0946 ± 0.0102.
With patches of 4 (49 tokens) masking does not pay: 0.36 against 0.08 in equal time (one seed, 1,500 samples).

On two CPU cores, with two mixer blocks and twelve backbone blocks of width 256 on 256 tokens, a masked step takes 0.35
of the time (scripts/bench/bench.py step --width=256 --depth=12 --set model.mixer_depth=2 --against model.mask=0.75).
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="digits"),
        batch_size=32,
        model=dict(name="microdit", patch=2, width=128, depth=6, heads=2, mask=0.75, mixer_depth=2, mixer_width=64),
        objective=dict(name="flow", guidance=2.0),
        optim=dict(lr=2e-3, warmup=100),
        ema=dict(decay=0.999),
        train=dict(steps=1400, preview_num=40, preview_every=500, eval_every=500, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        unmasked=dict(
            model=dict(mask=0.0),
            optim=dict(lr=2e-3, warmup=20),
            train=dict(steps=700, preview_every=350, eval_every=350, checkpoint_every=350),
        ),
        dense=dict(model=dict(mask=0.0), train=dict(steps=1200)),
        edm=dict(model=dict(time_scale=1.0), objective=dict(name="edm", sigma_data=0.6, guidance=2.0)),
        moe=dict(model=dict(experts=8, capacity=1.0)),
        smoke=dict(
            batch_size=16,
            model=dict(patch=4, width=32, depth=2, heads=2, mixer_depth=1, mixer_width=32, experts=4),
            objective=dict(nfe=8),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
