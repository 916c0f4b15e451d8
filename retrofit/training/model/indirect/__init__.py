"""Models that no call of theirs trains: methods of libraries, copies, and what cannot be followed."""
