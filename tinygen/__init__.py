"""tinygen: train tiny generative models from one config file."""

__version__ = "0.1.0"
