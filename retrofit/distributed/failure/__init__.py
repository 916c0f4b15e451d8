"""What goes wrong in a job is noticed, explained and said once: a rank that fails or waits, figures of one rank."""
