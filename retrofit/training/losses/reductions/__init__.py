"""The dependence of a loss on the samples of its batch: a sum, a mean, or coupled."""
