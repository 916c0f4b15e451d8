"""The link between ranks: how long a collective call takes, and what it costs the computation meanwhile."""
