"""What these tests share."""

from tests.installed import api, thief

__all__ = ["api", "thief"]
