"""Helpers of the launch scripts: Python and its packages, number of processes, port, rendezvous."""
