"""The ladder on the CPU, in reading order. Each file is one step up from its parent, and says which."""
