"""Faces, 64x64, by an attribute: a wide transformer, which does better than a deep one of the same size.

Data: 20,000 drawn faces, 64x64; CelebA; your own folder
Draws: faces by an attribute
Time: a GPU or TPU

    tinygen train --config=dit_faces_80m                                    # drawn avatars, made on first use
    tinygen train --config=dit_faces_80m:deep                               # 512 x 16 instead of 1152 x 6
    tinygen train --config=dit_faces_80m:moe                                # eight experts in every second block
    tinygen train --config=dit_faces_80m:masked                             # three quarters of the patches dropped
    tinygen train --config=dit_faces_80m:celeb_a                            # photographs, through TFDS
    tinygen train --config=dit_faces_80m:folder --config.data.path=photos   # your own
    tinygen train --config=dit_faces_80m:deep+celeb_a                       # variants add up

In stages, small and masked first; each starts from the averaged weights of the previous one:

    tinygen train --config=dit_faces_80m:masked+small                       # 32x32, a quarter of 64 patches
    tinygen train --config=dit_faces_80m:masked+grown --config.init.ckpt=runs/dit_faces_80m-masked+small            # 64x64
    tinygen train --config=dit_faces_80m:grown+unmasked --config.init.ckpt=runs/dit_faces_80m-masked+grown          # all patches

80M parameters. 6.9 TFLOPs per step of 64 faces, 1.2 GiB of state and some 18 GiB of temporaries (train --describe): for a GPU or a TPU
slice. On a CPU --config.batch_size=8 and a preview of a few faces show that it runs, at 6 to 11 s per step on two cores.

64x64 in patches of 4 is 256 tokens. One modulation layer is shared by all blocks (adaln="shared"): one per block would
take 6 W² each, two thirds of a wide block's attention and feed-forward. Parameters without biases and tables (0.1M),
for width W, depth N and F hidden features (a multiple of 128, for the TPU's tiles):

                                            wide: W 1152, N 6, F 1664     deep: W 512, N 16, F 2432
    attention               N x 4 W²                 31.9M                        16.8M
    feed-forward            N x 3 W F                34.5M                        59.8M
    shared modulation       6 W²                      8.0M                         1.6M
    final modulation        2 W²                      2.7M                         0.5M
    time and condition      256 W + 2 W²              2.9M                         0.7M
    patches in and out      2 x 48 W                  0.1M                         0.0M
                                                     80.0M                        79.3M

`moe` has 201M in all, 80M active per patch: a patch is routed to one of eight experts on average. The mixer of `masked` adds 10M.
`grown` has 16x16 patches where `small` had 8x8: their positions are interpolated to the same span of 8.

The optimizer is the first author's: AdamW, 3e-4 decaying linearly to 1e-5 over 5,000 steps, then constant; gradient clipping at 1.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    names = set(variant.split("+"))
    drawn = not {"celeb_a", "folder"} & names
    size = 32 if "small" in names else 64
    config = base(
        data=dict(name="avatars", size=size),
        batch_size=64,
        model=dict(name="microdit", patch=4, width=1152, depth=6, heads=16, mlp_ratio=2.15, mlp_multiple=128, adaln="shared"),
        objective=dict(name="flow", guidance=2.0),
        optim=dict(lr=3e-4, schedule="linear", decay_steps=5000, final_lr=1e-5, clip=1.0),
        ema=dict(decay=0.999),
        train=dict(steps=20_000, preview_every=1000, eval_every=1000, eval_num=512, checkpoint_every=1000),
    )
    return vary(
        config,
        variant,
        wide=dict(),
        deep=dict(model=dict(width=512, depth=16, heads=8, mlp_ratio=7.1)),
        moe=dict(model=dict(experts=8, capacity=1.0)),
        masked=dict(model=dict(mask=0.75, mixer_depth=2, mixer_width=576)),
        small=dict(),
        grown=dict(model=dict(position_grid=8), optim=dict(lr=1e-4), train=dict(steps=10_000)),
        unmasked=dict(model=dict(mask=0.0, mixer_depth=2, mixer_width=576), optim=dict(lr=1e-4), train=dict(steps=4_000)),
        celeb_a=dict(data=dict(name="celeb_a", size=size)),
        folder=dict(data=dict(name="folder", size=size)),
        smoke=dict(
            data=dict(num=240) if drawn else {},
            batch_size=8,
            model=dict(patch=16, width=64, depth=2, heads=2, mlp_ratio=2.0, mlp_multiple=64, position_grid=2 if "grown" in names else 0),
            objective=dict(nfe=8),
            optim=dict(decay_steps=0),
            train=dict(steps=20, log_every=5, eval_every=10, eval_num=8, preview_every=10, preview_num=12, checkpoint_every=10),
        ),
    )
