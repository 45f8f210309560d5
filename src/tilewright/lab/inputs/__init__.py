"""What a measurement is asked for: sizes, dtypes, parameters; and the environment it is made in."""
