"""Names, addresses, interfaces and ports, and an all-reduce between real processes."""
