"""What happened and who did it, as rows that outlive it: `__audit` and `__events`."""
