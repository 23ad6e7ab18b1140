"""Synthetic data: functions to learn, computed without files."""

import hashlib

import numpy as np

from tinygen.data.codec import Codec, Field
from tinygen.data.examples import ArrayExamples
from tinygen.data.source import DataSource
from tinygen.errors import check_positive
from tinygen.media import Array


def sine(*, num: int, held_out: int) -> DataSource:
    """`x` uniform in [-π, π] and `y` = sin x, both float32 [1]: `num` training and `held_out` held-out examples."""
    check_positive("data", num=num, held_out=held_out)
    x = np.random.default_rng(0).uniform(-np.pi, np.pi, (num + held_out, 1))
    examples = {"x": x.astype(np.float32), "y": np.sin(x).astype(np.float32)}
    return DataSource(
        codec=Codec(
            medium=Array("curve"),
            spec={
                "x": Field(shape=(1,), dtype="float32", low=-np.pi, high=np.pi),
                "y": Field(shape=(1,), dtype="float32", low=-1.0, high=1.0),
            },
        ),
        splits={
            "train": ArrayExamples({key: array[:num] for key, array in examples.items()}),
            "validation": ArrayExamples({key: array[num:] for key, array in examples.items()}),
        },
        # Hashes x alone: the last bit of a sine depends on the machine, and a run may be resumed on another.
        fingerprint=hashlib.sha256(f"sine {num}".encode() + examples["x"].tobytes()).hexdigest()[:16],
    )
