"""Executing one kernel on one device."""
