"""Online inference: a bundle in, predictions over HTTP. Never imports torch."""
