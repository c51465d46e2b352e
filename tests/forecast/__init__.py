"""Forecasts against made-up traces that are like a public one; benchmarks/forecast.py takes both."""
