"""Drawn faces, 32x32, from captions, which a small transformer trained with the model encodes.

Data: 20,000 drawn faces, 32x32, with captions
Draws: faces from captions
Time: 34 minutes

    tinygen train --config=microdit_avatars_text
    tinygen sample --ckpt=runs/microdit_avatars_text --prompt="a smiling person with tan skin and a blue bob, on a yellow background"
    tinygen train --config=microdit_avatars_text --config.data.name=folder --config.data.path=photos --workdir=runs/photos

The caption of img.png is in img.txt beside it, or in a metadata.jsonl or metadata.csv.

5.4M parameters; timed on two CPU cores, half of whose time went to other work (3,000 steps of 32). Colours and hair follow the caption
after 500 steps, glasses after 2,000.

Samples of 600 prompts in the captions' own words, checked by a fixed rule on pixels (scripts/compare/score_avatars.py, which makes no
mistake on 1,000 real held-out faces): background 100 %, hair 100 %, skin 100 %, glasses yes or no 100 %, each at least 99.4 % with a
confidence of 95 %; by chance 18, 13, 31 and 50 %.

    python scripts/compare/score_avatars.py --prompts-out=prompts.txt --num=600
    tinygen sample --ckpt=runs/microdit_avatars_text --prompts=prompts.txt --out=drawn
    python scripts/compare/score_avatars.py --samples=drawn --size=32

32x32 in patches of 4 is 64 tokens. A BPE of 418 tokens encodes captions of 110 letters in 24 tokens, at most 34.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="avatars", size=32, label=""),
        text=dict(tokens="bpe", length=40, vocabulary=512),
        batch_size=32,
        model=dict(name="microdit", patch=4, width=192, depth=6, heads=3, text_depth=2, text_width=128),
        objective=dict(name="flow", guidance=3.0),
        optim=dict(lr=1e-3, warmup=200),
        ema=dict(decay=0.999),
        train=dict(steps=3000, preview_every=500, eval_every=500, eval_num=512, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            data=dict(num=240),
            batch_size=16,
            model=dict(width=32, depth=2, heads=2, text_depth=1, text_width=32),
            objective=dict(nfe=8),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=20, checkpoint_every=10),
        ),
    )
