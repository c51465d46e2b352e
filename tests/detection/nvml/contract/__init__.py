"""What the agent relies on of NVML and nvidia-smi: the same for the stand-ins and for real cards.

The stand-ins are a compiled libnvidia-ml.so.1 (tests/stubs/nvml) and a program (tests/fakes/
nvidia_smi.py). Both answer as an H200 did, idle and under load (tests/gpu/recordings).

A real card is a parameter of its own, with the marker `gpu`. It is collected where the PCI bus has
a GPU of NVIDIA's, or where HPCTL_TEST_GPU=1 says that there is one: on a machine without a GPU
there is no such test, so none is skipped, and `pytest -m gpu tests/detection/nvml/contract` ends
with exit code 5 ("no tests collected"). The tests only look: they change nothing on the card.
Nothing asserts how long a call takes.
"""
