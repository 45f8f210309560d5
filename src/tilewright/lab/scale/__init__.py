"""Simulates products on clusters: from a product's plan and the rates of workers it computes the time and the bytes of
each worker."""
