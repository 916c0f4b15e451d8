"""The numbers that a controlled run computes with: float64, and no rounding where a sign decides about a gradient."""
