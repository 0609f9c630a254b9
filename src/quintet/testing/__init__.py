"""Simulated surroundings for tests: time, turns, disks. Nothing in the broker imports this package."""
