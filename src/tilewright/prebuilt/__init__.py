"""Builds the engine's machine code before it is needed: ``python -m tilewright.prebuilt``."""
