"""What `compact` and `rollup` share: a topic is read range by range, and each range's result goes to an output."""
