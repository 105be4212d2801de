"""What a classifier is: text pipeline, network, bundle. Imports nothing by itself."""
