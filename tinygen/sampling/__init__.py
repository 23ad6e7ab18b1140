"""Drawing samples: conditions, sampler settings, previews."""
