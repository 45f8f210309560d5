"""The places that multiply blocks: the host's processor and GPUs, each with its memory and the memories that blocks pass
through.
"""
