"""Runs transformers' own model tests, and further checks of the same kind, on families of models."""

from .family import Family

__all__ = ["Family"]
