"""The prediction: what a step takes under each strategy, and what it keeps in memory."""
