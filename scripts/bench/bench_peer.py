"""The peer of `bench.py --peer`: the same DiT in PyTorch, as diffusers' DiTTransformer2DModel, on the CPU.

It runs under a Python interpreter with torch and diffusers, and speaks the protocol of `benchmarks.worker`.

`--work=step` takes a training step: rectified flow on a fixed batch of noise, AdamW, the global norm clipped at 1,
averaged weights. `--work=sampling` draws a batch of samples with Euler steps, without gradients. `--mode` is eager or
compile (torch.compile); bf16 and compile_bf16 run under autocast to bfloat16.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.worker import serve

MODES = ("eager", "bf16", "compile", "compile_bf16")


def main() -> int:
    parser = argparse.ArgumentParser(description="The peer process of bench.py, which starts it.")
    parser.add_argument("--work", choices=("step", "sampling"), required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    for name in ("size", "channels", "patch", "width", "depth", "heads", "classes", "batch_size", "nfe"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    return serve(lambda: prepare(options))


def prepare(options: argparse.Namespace) -> tuple[Callable[[], Any], dict[str, Any]]:
    """(a turn, facts about the peer)"""
    # Imported by name: they are installed for another interpreter, so the type checker cannot resolve them.
    torch, diffusers = map(importlib.import_module, ("torch", "diffusers"))
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=options.heads,
        attention_head_dim=options.width // options.heads,
        num_layers=options.depth,
        in_channels=options.channels,
        sample_size=options.size,
        patch_size=options.patch,
        num_embeds_ada_norm=options.classes,
    )
    facts = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "diffusers": diffusers.__version__},
    }
    return {"step": training, "sampling": sampling}[options.work](torch, model, options), facts


def training(torch: Any, model: Any, options: argparse.Namespace) -> Callable[[], float]:
    velocity, (images, labels) = forward(torch, model, options), batch(torch, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weights = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]

    def step() -> float:
        t, noise = torch.rand(options.batch_size), torch.randn_like(images)
        at = t[:, None, None, None]
        loss = torch.square(velocity((1 - at) * images + at * noise, t, labels).float() - (noise - images)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, weights, 1e-3)
        return float(loss)

    return step


def sampling(torch: Any, model: Any, options: argparse.Namespace) -> Callable[[], Any]:
    velocity, (images, labels) = forward(torch, model.eval(), options), batch(torch, options)

    def sample() -> Any:
        with torch.inference_mode():
            x = torch.randn_like(images)
            for index in range(options.nfe):
                t = torch.full((options.batch_size,), 1 - index / options.nfe)
                x = x - velocity(x, t, labels).float() / options.nfe
        return x

    return sample


def forward(torch: Any, model: Any, options: argparse.Namespace) -> Callable[..., Any]:
    """(x [B, C, H, W], t [B] in [0, 1], labels [B]) -> the velocity, computed in the requested mode."""
    network = torch.compile(model) if options.mode.startswith("compile") else model

    def velocity(x: Any, t: Any, labels: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.mode.endswith("bf16")):
            return network(x, timestep=1000 * t, class_labels=labels, return_dict=False)[0]

    return velocity


def batch(torch: Any, options: argparse.Namespace) -> tuple[Any, Any]:
    """Random images in [-1, 1] and labels, used for every turn."""
    images = 2 * torch.rand(options.batch_size, options.channels, options.size, options.size) - 1
    return images, torch.randint(0, options.classes, (options.batch_size,))


if __name__ == "__main__":
    sys.exit(main())
