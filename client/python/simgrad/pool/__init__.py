"""Several servers as one client (docs/scale.md)."""

from simgrad.pool.pool import Pool

__all__ = ["Pool"]
