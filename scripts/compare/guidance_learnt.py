"""Share of the requested guidance that an improved MeanFlow model has learnt, for r = t on held-out examples.

    python scripts/compare/guidance_learnt.py --ckpt=runs/improved

Guidance 2 requests the velocity v(c) + (v(c) - v(null)), where both are unguided. This prints the projection of what
the model adds, u(c; 2) - u(c; 1), on v(c) - v(null), over five times: 1 is all of it, 0 none. Uses the averaged weights
and the guidance interval [0, 1].
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from tinygen import build
from tinygen.checkpoints import weights
from tinygen.data.examples import Examples
from tinygen.rng import stream
from tinygen.sampling import settings
from tinygen.train_step import merge

TIMES = (0.2, 0.4, 0.6, 0.8, 0.95)


def share(ckpt: str) -> float:
    saved = settings.find(ckpt, None, None)
    config = settings.configured(saved.config, {}, saved.codec)
    parts = build.parts(config, saved.codec)
    model = merge(parts.graphdef, *weights.load(saved, parts, ema=True))
    held_out: Examples = build.data_source(config).splits["validation"]
    batch = held_out.take(np.arange(len(held_out)))
    x, label, B = jnp.asarray(batch["x"]), jnp.asarray(batch["label"]), len(held_out)

    @jax.jit
    def velocity(z: jax.Array, t: jax.Array, omega: float, keep: bool) -> jax.Array:
        interval = {"t_lo": jnp.zeros(B), "t_hi": jnp.ones(B)}
        cond = {"label": label, "keep": jnp.full(B, keep), "omega": jnp.full(B, omega), **interval}
        return model(z, t, t, cond=cond).pred

    added = requested = 0.0
    for key, time in zip(jax.random.split(stream(0, "eval"), len(TIMES)), TIMES, strict=True):
        t = jnp.full(B, time)
        z = (1 - time) * x + time * jax.random.normal(key, x.shape)
        plain = velocity(z, t, 1.0, True)
        difference = plain - velocity(z, t, 1.0, False)
        added += float(jnp.sum(difference * (velocity(z, t, 2.0, True) - plain)))
        requested += float(jnp.sum(jnp.square(difference)))
    return added / requested


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ckpt", required=True, help="workdir of a run with the objective improved_meanflow and labels")
    print(f"{share(parser.parse_args().ckpt):.3f} of the requested guidance")


if __name__ == "__main__":
    main()
