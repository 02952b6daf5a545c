"""What the supervisor and the worker must agree on. Imports neither of them."""

__version__ = "0.1.0"
