"""The rooms of the code from top to bottom: a module imports from rooms below its own, or from its own room.

A room is a package or a module at the top level of `tinygen/`. `tests/structure_test.py` enforces the order;
`code_map.py` prints it.
"""

ROOMS = [
    {"cli"},  # and __main__
    {"train", "check", "sample", "evaluate", "eval_fid", "report"},
    {"training"},
    {"evaluation"},
    {"sampling"},
    {"pretrained"},
    {"checkpoints", "profiling"},
    {"build"},
    {"workdir", "models", "objectives", "train_step"},
    {"samplers", "data", "distributed", "optim"},
    {"nn", "media", "config", "system"},
    {"errors", "rng"},
]


def room(module: str) -> str:
    """The room of a module below `tinygen`: "models" for "models.microdit"."""
    return "cli" if module == "__main__" else module.partition(".")[0]
