"""The common loop of `compact` and `rollup`: read a topic range by range, and write each result to an output."""
