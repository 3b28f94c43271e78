"""Serving a language model by the OpenAI protocol."""
