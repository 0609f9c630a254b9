"""Who reads what and how far they are: consumer groups, their members, subscriptions that outlive connections."""
