"""What is kept: conversations in SQLite."""
