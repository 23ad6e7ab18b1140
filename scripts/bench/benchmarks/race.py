"""tinygen, tinygen with other settings, and peers at the same work: a training step or a batch of samples."""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import ours, products, turns
from benchmarks.machine import caution, head
from benchmarks.peer import Peer, started
from tinygen.config import Config
from tinygen.errors import UserError

WORKS = {"step": ours.training_step, "sampling": ours.sampler}
SAMPLER = ("objective.sampler=euler", "objective.guidance=1.0")  # one evaluation per step, without guidance


class Opponents(NamedTuple):
    """python: interpreter of the peers, "" for none; patience: as for `peer.started`"""

    python: str = ""
    modes: Sequence[str] = ()
    patience: float = 60.0


def measure(
    work: str,
    sizes: Mapping[str, Sequence[int]],
    shape: Sequence[int],
    settings: Sequence[str],
    against: Sequence[Sequence[str]],
    *,
    rounds: int,
    opponents: Opponents,
    product_seconds: float,
) -> dict[str, Any]:
    """Measures `work` for all combinations of `sizes`: {"products", "runs": [{sizes, "contestants": [...]}, ...]}.

    settings: "key=value" overrides of tinygen's configuration
    against: additional overrides, one contestant each
    """
    before = products.measure(product_seconds)
    runs = []
    for chosen in ours.grid(sizes):
        config = ours.configuration(chosen, settings)
        real = {name: config.model[name] for name in ours.OPTIONS} | {"batch_size": config.batch_size, "shape": list(shape)}
        runs.append(real | {"contestants": compete(work, chosen, shape, settings, against, rounds, opponents)})
    best = products.best([*before, *(after := products.measure(product_seconds))])
    for row in (row for run in runs for row in run["contestants"] if "flops" in row):
        row["flops_per_s"] = row["flops"] / statistics.median(row["seconds"])
        kind = "float32" if row["operands"] == "float32" else "bfloat16"
        row["share"] = row["flops_per_s"] / best[kind] if kind in best else None
    return {"rounds": rounds, "settings": list(settings), "products": {"before": before, "after": after, "best": best}, "runs": runs}


def compete(
    work: str,
    chosen: Mapping[str, int],
    shape: Sequence[int],
    settings: Sequence[str],
    against: Sequence[Sequence[str]],
    rounds: int,
    opponents: Opponents,
) -> list[dict[str, Any]]:
    """One row per contestant. The first is tinygen, with which the others are compared."""
    from tinygen import build

    codec, variants = ours.noise_codec(shape), [[], *against]
    configs = [ours.configuration(chosen, [*settings, *changes]) for changes in variants]
    options = peer_options(work, configs[0], shape, settings) if opponents.python else {}
    with contextlib.ExitStack() as stack:
        works = [WORKS[work](config, codec) for config in configs]
        for own in works:
            own.run()  # warm up
        peers: list[Peer] = []
        for mode in opponents.modes if opponents.python else ():
            peers.append(peer := stack.enter_context(started(opponents.python, mode, options, opponents.patience)))
            if not peer.prepare():
                peer.end()  # or it might compute while the others are timed
        racing = [peer.turn for peer in peers if peer.races]
        seconds = iter(turns.take([*(turns.timed(own.run) for own in works), *racing], rounds))
    rows = [
        dict(name=" ".join(changes) or "tinygen", settings=list(changes), batch_size=config.batch_size, parameters=own.parameters)
        | dict(operands=build.precision(config), flops=own.flops, compile_s=own.stages, seconds=next(seconds))
        for changes, config, own in zip(variants, configs, works, strict=True)
    ]
    rows += [
        dict(name=peer.name, batch_size=configs[0].batch_size, **(peer.facts or {}), first_turn_s=peer.first, raced=peer.races)
        | dict(idle_cpu_s=peer.idle, our_cpu_s_meanwhile=peer.disturbed)
        | dict(seconds=next(seconds) if peer.races else [peer.once] if peer.once else [])
        for peer in peers
    ]
    return [row | speed(row, rows[0]) for row in rows]


def speed(row: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, float]:
    """Images per second, and `ratio`: the speed of the first contestant relative to this one, by the median over rounds."""
    if not row["seconds"]:
        return {}
    seconds = row["seconds"] if row.get("raced", True) else row["seconds"] * len(first["seconds"])
    ratio = turns.ratio(first["seconds"], seconds) * first["batch_size"] / row["batch_size"]
    return {"images_per_s": row["batch_size"] / statistics.median(seconds), "ratio": ratio}


def peer_options(work: str, config: Config, shape: Sequence[int], settings: Sequence[str]) -> dict[str, Any]:
    """The flags of `bench_peer.py`. Raises UserError for work that it does not support."""
    import jax

    known = (*SAMPLER, f"objective.nfe={config.objective.nfe}")
    if unsupported := [setting for setting in settings if setting.startswith("objective.") and setting not in known]:
        raise UserError(f"--peer does not support {', '.join(unsupported)}")
    height, width, channels = shape
    if height != width:
        raise UserError(f"--peer needs square images, but --shape is {height},{width},{channels}")
    if jax.default_backend() != "cpu":
        raise UserError(f"--peer runs on the CPU, but tinygen runs on {jax.default_backend()}: set JAX_PLATFORMS=cpu")
    sizes = {name: config.model[name] for name in ("patch", "width", "depth", "heads")}
    nfe = config.objective.nfe
    return dict(work=work, size=height, channels=channels, **sizes, classes=ours.CLASSES, batch_size=config.batch_size, nfe=nfe)


def table(result: dict[str, Any]) -> str:
    lines = [
        head(result["machine"]),
        f"medians of {result['rounds']} rounds; settings: {' '.join(result['settings']) or 'defaults'}",
    ]
    wide = max(len(row["name"]) for run in result["runs"] for row in run["contestants"])
    for run in result["runs"]:
        first = run["contestants"][0]
        sizes = ", ".join(f"{name} {run[name]}" for name in (*ours.OPTIONS, "batch_size"))
        lines += ["", f"{sizes} of {run['shape']}: {first['flops'] / 1e9:.1f} GFLOP"]
        lines.append(f"{'':<{wide}}  parameters         ms   images/s    GFLOP/s  of best product  compile s  tinygen vs it")
        lines += [line(row, wide) for row in run["contestants"]]
    best = ", ".join(f"{kind} {rate / 1e9:.1f} GFLOP/s" for kind, rate in result["products"]["best"].items())
    return "\n".join([*lines, "", f"best product: {best or 'not measured'}", *caution(result["busy_before"])])


def line(row: Mapping[str, Any], wide: int) -> str:
    """The row of one contestant."""
    start = f"{row['name']:<{wide}}  {row['parameters']:>10,}"
    if not row["seconds"]:
        return f"{start}   timed out (--peer_patience)"
    start += f" {1000 * statistics.median(row['seconds']):10.1f} {row['images_per_s']:10.3f}"
    if "flops_per_s" not in row:
        once = "" if row["raced"] else "  (a single turn: too slow for --peer_patience)"
        return f"{start} {'':37} {row['ratio']:13.2f}x{once}"
    share = f"{row['share']:.0%} {row['operands']}" if row["share"] else "-"
    return f"{start} {row['flops_per_s'] / 1e9:10.1f} {share:>16} {sum(row['compile_s'].values()):10.1f} {row['ratio']:13.2f}x"
