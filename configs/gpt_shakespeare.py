"""miniGPT on Shakespeare.

tinygen train --config=configs/gpt_shakespeare.py
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
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=4, checkpoint_every=10),
        ),
    )
