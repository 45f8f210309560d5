"""Matrices in files and at URLs, for your own programs: the public name of ``large.files``."""

from .large.files import open_matrix

__all__ = ["open_matrix"]
