"""SGLang's own test helpers and runtime, run on this project's kernels. Start at ../prove_sglang.py."""
