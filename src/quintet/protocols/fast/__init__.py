"""Fast TCP Pub/Sub: tiny packets, a signed token in each, topics by number and key. See README.md in this folder."""
