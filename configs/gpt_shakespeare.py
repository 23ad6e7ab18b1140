"""miniGPT on 14 plays by Shakespeare, evaluated on two others.

Data: 16 plays, 2 MB, in the package
Draws: text: plays, or continuations of a prompt
Time: 8 minutes

    tinygen train --config=gpt_shakespeare
    tinygen sample --ckpt=runs/gpt_shakespeare --prompt="ROMEO:" --top_p=0.95

5.1M parameters; timed on two CPU cores with AVX-512 and bfloat16 (1,000 steps of 16 windows at 0.4 s). On the held-out Comedy of Errors
and Macbeth, the averaged weights reach 2.42 bits per byte after 250 steps and 2.28 at the end; `bzip2 -9` needs 2.49.

1.77 MB of plays are 742,000 tokens of a BPE of 1,024, 2.4 bytes each, in 2,896 windows of 256. 1,000 steps see each five and a half
times, so that dropout of 0.25 and strong weight decay help (1,500 steps at 2e-3 with dropout 0.3 ended at 2.29).
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="shakespeare", tokenizer="bpe", vocabulary=1024, length=256),
        batch_size=16,
        model=dict(name="minigpt", width=256, depth=6, heads=4, dropout=0.25),
        objective=dict(name="autoregressive", temperature=0.8),
        optim=dict(lr=3e-3, weight_decay=0.3),
        ema=dict(decay=0.99),
        train=dict(steps=1000, log_every=20, preview_every=250, preview_num=4, eval_every=250, checkpoint_every=500),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            data=dict(length=32, vocabulary=300),
            batch_size=8,
            model=dict(width=32, depth=2, heads=2),
            objective=dict(new_tokens=32),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=4, checkpoint_every=10),
        ),
    )
