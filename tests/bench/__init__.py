"""Tests of the load generators and of the side-by-side harness."""
