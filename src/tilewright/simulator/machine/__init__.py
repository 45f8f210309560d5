"""The state of a running kernel: its threads, their registers and clocks, and its memory."""
