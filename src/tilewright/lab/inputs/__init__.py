"""What is to be measured: sizes, dtypes, parameters; and the environment in which it is measured."""
