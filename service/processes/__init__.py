"""Several processes that answer HTTP, in front of the one that has the models: what they say, and who starts them."""
