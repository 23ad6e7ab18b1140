"""Latents of images, encoded once by an autoencoder."""
