"""What a training costs: tokens, seconds, GPU-hours, and dollars where prices are known."""

from art_langgraph.costs.cost import Cost
from art_langgraph.costs.meter import CostMeter, RunCost
from art_langgraph.costs.price import GPU_HOUR_PRICE, GPUPrice
from art_langgraph.costs.tokens import Tokens

__all__ = ["GPU_HOUR_PRICE", "Cost", "CostMeter", "GPUPrice", "RunCost", "Tokens"]
