"""Captions as conditions: tokens for a model's own encoder, or embeddings made by CLIP or T5."""
