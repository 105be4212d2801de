"""Other servers' protocols, thin, over the one path from texts to answers."""
