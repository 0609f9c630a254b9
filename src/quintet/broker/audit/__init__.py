"""Writes down what happened and who did it, in the topics `__audit` and `__events`."""
