"""Drawing samples: what a user asks for, sampler settings, previews."""
