"""Forecasts against traces: a public one where it is at hand, and one like it, made up."""
