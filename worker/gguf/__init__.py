"""Imports GGUF files as mlx-lm model folders: `python -m worker.gguf FILE --out FOLDER`.

Always a process of its own. Weights are repacked, not requantised: every value of the model is exactly
the value that the file holds.
"""
