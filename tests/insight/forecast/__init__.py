"""Forecasts against made-up traces like a public one; benchmarks/forecast.py takes both."""
