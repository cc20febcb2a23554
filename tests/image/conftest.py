"""What these tests share."""

from tests.image.running import alive, run

__all__ = ["alive", "run"]
