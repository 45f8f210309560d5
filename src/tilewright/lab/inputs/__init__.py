"""The inputs of a measurement: sizes, dtypes, parameters, and the environment in which it is made."""
