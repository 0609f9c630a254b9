"""Commands that read a data folder without a broker: log, repair, audit."""
