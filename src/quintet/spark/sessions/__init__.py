"""Makes Spark sessions: Java, settings, start, how the package reaches a cluster, SQL views, notebooks."""
