"""Random draws that depend on the sample alone, not on the rank."""
