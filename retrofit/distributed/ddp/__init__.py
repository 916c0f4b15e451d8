"""The parts of the DDP wrapper; `rd.model` has what scripts use of them."""
