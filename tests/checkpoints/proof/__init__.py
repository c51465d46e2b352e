"""Checkpoints written by the real libraries while they are killed, and what hpctl says of them."""
