"""The machine that executes PTX: state, memory, barriers, one instruction for all lanes at a time."""
