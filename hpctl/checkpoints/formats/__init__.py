"""One module for each format: how to recognize a checkpoint of it, and how to prove it complete.

`manifest` is hpctl's own format; `torch_files` (torch.save and DCP), `deepspeed`, `megatron`,
`hf_trainer`, `accelerate`, `torchtune`, `flax_file`, `nvrx` and `orbax` are those of frameworks.
`ocdbt` and `pickle_reader` read containers that several of them use. FORMATS in
`hpctl.checkpoints.search` lists the formats in use. A module returns what is wrong as a value;
OSError passes through where the storage fails.
"""
