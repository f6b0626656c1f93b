"""What tests share: small real servers, environments, builders. Tests import from here, never from another test."""

from pathlib import Path

SUPPORT = Path(__file__).parent
