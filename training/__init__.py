"""The offline job: labelled text in, a bundle out."""
