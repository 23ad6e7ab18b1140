"""Documents, their tokens, and the windows that language models are trained on."""
