"""Downloads a model from the hub: a program of its own, `python -m supervisor.pulling`.

It alone imports huggingface_hub, and nothing here is imported by the supervisor.
"""
