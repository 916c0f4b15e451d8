"""Program analysis of plain Python."""
