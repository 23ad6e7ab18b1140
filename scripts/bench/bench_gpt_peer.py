"""The peer of `bench_gpt.py step --peer`: a training step of GPT-2's network in PyTorch, on the CPU.

It runs under a Python interpreter with torch, and speaks the protocol of `benchmarks.worker`. Pre-norm blocks, learned
positions, GELU, PyTorch's scaled dot-product attention, tied embeddings; AdamW with the global norm clipped at 1.
`--mode` is as in `bench_peer.py`.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.worker import serve

SIZES = ("width", "depth", "heads", "hidden", "vocabulary", "length", "batch_size")


def main() -> int:
    parser = argparse.ArgumentParser(description="The peer process of bench_gpt.py, which starts it.")
    parser.add_argument("--mode", choices=("eager", "bf16", "compile", "compile_bf16"), required=True)
    for name in SIZES:
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    return serve(lambda: training(options))


def training(options: argparse.Namespace) -> tuple[Callable[[], float], dict[str, Any]]:
    """(a step, facts about the peer)"""
    # Imported by name: it is installed for another interpreter, so the type checker cannot resolve it.
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    model = network(torch, options)
    forward = torch.compile(model) if options.mode.startswith("compile") else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    window = torch.randint(0, options.vocabulary, (options.batch_size, options.length + 1))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=options.mode.endswith("bf16")):
            logits = forward(window[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    weights = sum(weight.numel() for weight in model.parameters())
    return step, {"parameters": weights, "threads": torch.get_num_threads(), "versions": {"torch": torch.__version__}}


def network(torch: Any, options: argparse.Namespace) -> Any:
    """Tokens [B, T] -> logits [B, T, V]."""
    nn, width = torch.nn, options.width

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.feed_forward = nn.Sequential(nn.Linear(width, options.hidden), nn.GELU(), nn.Linear(options.hidden, width))

        def forward(self, x: Any) -> Any:
            B, T, _ = x.shape
            q, k, v = self.qkv(self.attention_norm(x)).view(B, T, 3, options.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(B, T, width))
            return x + self.feed_forward(self.feed_forward_norm(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(options.vocabulary, width), nn.Embedding(options.length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(options.depth)))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
            return nn.functional.linear(self.norm(self.blocks(x)), self.tokens.weight)

    return GPT()


if __name__ == "__main__":
    sys.exit(main())
