"""Tower Break-glass: a shell next to a misbehaving pod in seconds, and proof for everybody else."""

__version__ = "0.1.0"
