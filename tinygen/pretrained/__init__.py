"""Networks that were trained elsewhere: autoencoders, text encoders, and readers for weight files."""
