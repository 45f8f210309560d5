"""The public name of ``large.files``: matrices in files and at URLs, for programs of your own."""

from .large.files import open_matrix

__all__ = ["open_matrix"]
