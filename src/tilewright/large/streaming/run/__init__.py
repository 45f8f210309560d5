"""Executes a plan: contains the executor for one or several places, the journal and the job that writes the result."""
