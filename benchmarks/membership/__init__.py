"""swimcluster beside kinship, a membership library with a Rust core: real processes on loopback, in one run.

`python -m benchmarks.membership [--members N] [--rounds K] [--json]`. What is measured and how is told in
docs/swimcluster/beside_kinship.md.
"""
