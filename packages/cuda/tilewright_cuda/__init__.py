"""Archives of compiled kernels, one for each architecture, in this folder. Nothing is imported from here."""
