"""From the marks of all ranks to what is said: steps, waits for late ranks, where the time went, causes and gains."""
