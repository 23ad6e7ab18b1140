"""Flags that the comparisons share."""

import argparse


def add_scoring(parser: argparse.ArgumentParser, num: int) -> None:
    """--features and --num of a Fréchet distance, and --set. num: the default number of samples"""
    parser.add_argument(
        "--features",
        help="compute the Fréchet distance in these features: efflite0, inception or a classifier's workdir",
    )
    parser.add_argument("--num", type=int, default=num, help="samples per Fréchet distance (default: %(default)s)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a config key of all recipes, such as train.steps=100; repeatable",
    )
