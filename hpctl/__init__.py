"""Self-healing Slurm GPU clusters on Amazon SageMaker HyperPod."""

__version__ = "0.1.0"
