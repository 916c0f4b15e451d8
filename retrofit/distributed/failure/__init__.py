"""What goes wrong in a job is noticed, explained, said once: a rank that fails or waits in vain, figures of one rank."""
