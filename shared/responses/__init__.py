"""OpenAI's Responses as both sides know them.

The supervisor keeps their history, so it reads requests before any model is loaded; the worker answers them.
Source of all shapes: OpenAI's API reference, "Responses" and "Conversations".
"""
