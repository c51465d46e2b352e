"""A stand-in for NCCL's RAS service: the documented protocol, without NCCL and without a GPU."""
