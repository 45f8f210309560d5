"""Clusters simulated: a product's plan and the rates of workers come in, the time and bytes of each worker go out."""
