"""What an architecture costs, before it is trained."""

from isoflop.plan.cost import Cost, price

__all__ = ["Cost", "price"]
