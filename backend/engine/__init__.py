"""Everything that owns tokens: the child process and its two ends."""
