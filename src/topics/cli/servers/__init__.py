"""Commands that start servers, print their settings, and name them in contexts."""
