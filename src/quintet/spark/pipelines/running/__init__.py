"""Runs pipelines: options, files, session, progress, failures, reports to the broker."""
