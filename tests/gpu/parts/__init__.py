"""The parts of the proof: one module each, in the order of tests.gpu.plan.PARTS."""
