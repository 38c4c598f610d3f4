"""The engine's speed beside llama-server, as clients of both have it: see `benchmarks.engine.__main__`."""
