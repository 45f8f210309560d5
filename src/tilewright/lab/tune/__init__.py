"""Searches for better blockings and parameters."""
