"""Sharded training of a script that knows nothing of it: `RETROFIT_STRATEGY=fsdp`."""
