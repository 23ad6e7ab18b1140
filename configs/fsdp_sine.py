"""A perceptron learns y = sin x, its state split over all devices: fully sharded training, small enough to watch.

Data: points of a sine
Draws: a perceptron's curve beside the truth, its state split over all devices
Time: 4.5 minutes

    tinygen train --config=fsdp_sine
    XLA_FLAGS=--xla_force_host_platform_device_count=8 tinygen train --config=fsdp_sine --workdir=runs/eight

1.05M parameters; runs on 1, 2, 4 or 8 devices with the same noise and dropout masks. Timed on two CPU cores without
AVX-512, on one device (20,000 steps of 64). Test mean squared error of the averaged weights 5.4e-5, of the raw ones
5.5e-5; the average is below 1e-3 from step 2,500 on.

1-1024-1024-1: 1024 x 1024 = 1,048,576 of the 1,052,673 parameters are one kernel, the only leaf worth splitting:
gathering a vector of 4 kB costs more than it saves. Each of 8 devices holds 0.5 MiB of it, of its average and of each
of its two moments. 4,096 training points are 64 batches, so 20,000 steps see each 312 times.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="sine"),
        batch_size=64,  # a multiple of 8, for 8 devices
        precision="float32",  # bfloat16 would round x itself to 8 bits
        model=dict(name="mlp", hidden=1024, depth=2, dropout=0.1),
        objective=dict(name="regression", target_noise=0.0),
        optim=dict(lr=1e-3, warmup=100, b2=0.999),
        ema=dict(decay=0.999),
        mesh=dict(data=1, fsdp=-1),
        sharding=dict(min_size=2**16),  # more than a vector's 1024 elements, less than the kernel's 1024 x 1024
        train=dict(steps=20_000, log_every=100, eval_every=500, preview_every=2_000, preview_num=512, checkpoint_every=5_000),
    )
    return vary(
        config,
        variant,
        smoke=dict(
            model=dict(hidden=32),
            sharding=dict(min_size=2**10),
            optim=dict(warmup=2),
            train=dict(steps=20, log_every=5, eval_every=10, preview_every=10, preview_num=64, checkpoint_every=10),
        ),
    )
