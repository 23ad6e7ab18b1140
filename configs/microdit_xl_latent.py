"""MicroDiT XL/2 on latents, by label: 32x32x4 for images of 256x256 with Stable Diffusion's autoencoder (factor 8).

Data: latents that scripts/prepare/prepare_latents.py makes of your images
Draws: images of 256x256 by label
Time: a GPU or TPU

    python scripts/prepare/prepare_latents.py --config=dit_faces_80m:folder --config.data.path=photos --config.data.size=256 \\
        --autoencoder=vae.safetensors --out=latents/photos                                         # once
    tinygen train --config=microdit_xl_latent --config.data.path=latents/photos                    # three quarters of the patches dropped
    tinygen train --config=microdit_xl_latent:unmasked --config.data.path=latents/photos \\
        --config.init.ckpt=runs/microdit_xl_latent                                                 # then a stage on all of them
    tinygen train --config=microdit_xl_latent:tiny --config.data.path=latents/photos               # the authors' smaller size

The same in miniature, in a minute or two on a CPU, on drawn faces and a barely trained autoencoder:

    tinygen train --config=autoencoder_avatars:smoke
    python scripts/prepare/prepare_latents.py --config=autoencoder_avatars:smoke --autoencoder=runs/autoencoder_avatars-smoke \\
        --out=latents/smoke
    tinygen train --config=microdit_xl_latent:smoke

974M parameters, 554M active per patch: a patch is routed to two of eight experts on average. With width W, depth N and hidden features
and heads that grow from block to block (feed-forward ratio 0.5 to 4, attention 0.5 to 1 of 16 heads of 64):

                                            XL/2: W 1024, N 28                tiny: W 512, N 16
    attention                                        88.2M                        12.6M
    feed-forward, every second block                 73.2M                        11.4M
    8 experts, the other blocks                     560.5M                        85.1M
    modulation              N x 6 W²                176.3M                        25.2M
    mixer                   6 of 768, 4 of 512       70.9M                        20.0M
    other                                             5.3M                         1.5M
                                                    974.4M                       155.8M

32x32 in patches of 2 is 256 tokens: the mixer sees all, the backbone 64. A step of 2,048 images takes 385 TFLOPs, 1,136 without the mask
(tiny: 84 and 202). The state takes 14.5 GiB, gradients 3.6 more (tiny: 2.3 and 0.6), and 256 images are on the devices at once
(accumulate=8): for accelerators; --config.mesh.fsdp=-1 --config.mesh.data=1 splits the state over several.
Only the miniature run has been tested.

The authors' schedule (arXiv 2407.15811): AdamW, 2.4e-4 after 2,500 steps, a cosine to 8e-5 at 250,000, then 30,000 unmasked steps at that;
clip 0.25, weight decay 0.1; ln σ = N(-0.6, 1.2). Their latents have a standard deviation of 0.9, these 1, hence sigma_data = 1.
"""

from tinygen.config import Config, base, vary


def get_config(variant: str = "") -> Config:
    config = base(
        data=dict(name="latents"),
        batch_size=2048,
        model=dict(
            name="microdit",
            patch=2,
            width=1024,
            depth=28,
            heads=16,
            mlp_ratio=4.0,
            mlp_ratio_first=0.5,
            attention_first=0.5,
            mlp_multiple=256,
            mask=0.75,
            mixer_depth=6,
            mixer_width=768,
            experts=8,
            capacity=2.0,
            time_scale=1.0,
        ),
        objective=dict(name="edm", sigma_data=1.0, p_mean=-0.6, p_std=1.2, nfe=70),
        optim=dict(lr=2.4e-4, warmup=2500, final_lr=8e-5, b1=0.9, b2=0.999, weight_decay=0.1, clip=0.25, accumulate=8),
        ema=dict(decay=0.9999),
        train=dict(steps=250_000, preview_every=2500, eval_every=2500, eval_num=2048, checkpoint_every=2500),
    )
    return vary(
        config,
        variant,
        tiny=dict(model=dict(width=512, depth=16, mixer_depth=4, mixer_width=512)),
        unmasked=dict(model=dict(mask=0.0), optim=dict(lr=8e-5, schedule="constant"), train=dict(steps=30_000)),
        smoke=dict(
            data=dict(path="latents/smoke"),
            batch_size=8,
            model=dict(width=32, depth=2, heads=2, mlp_multiple=64, mixer_depth=1, mixer_width=32, experts=4),
            objective=dict(nfe=8),
            optim=dict(accumulate=1, warmup=5),
            train=dict(steps=20, log_every=5, eval_every=10, eval_num=8, preview_every=10, preview_num=6, checkpoint_every=10),
        ),
    )
