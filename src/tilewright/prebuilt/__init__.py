"""The engine's machine code, built before it is needed: ``python -m tilewright.prebuilt``."""
