"""Training on a GPU, or on CPUs in a dry run: the programs of the parts, and what starts them."""
