"""The names of the shipped presets of log rules."""

PRESETS = ("deepspeed", "hf", "lightning", "megatron", "nemo", "s3-uploads", "torchtitan")
