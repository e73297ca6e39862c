"""The engine benchmark: ``python -m benchmarks.engine --help``."""
