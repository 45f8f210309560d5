"""Products on GPUs: arrays that lie there come in, steps are planned and launched, and the product lies there, too."""
