"""The machine: signals, memory, caches, whose fault an error is, and the terminal."""
