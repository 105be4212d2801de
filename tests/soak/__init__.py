"""`make soak`: many mixed requests, faults and hang-ups at a real service, and whether it kept its word throughout."""
