"""A container image without a container engine: `python -m tools.image.build`. It uses the standard library only."""
