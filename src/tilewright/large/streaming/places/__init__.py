"""Defines the places that multiply blocks: the host's processor and its GPUs, each with its memory and the buffers that
blocks pass through.
"""
