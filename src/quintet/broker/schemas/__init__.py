"""The schema registry, its validators and its rules of compatibility."""
