"""Pages that show what the server does and let people try its parts; all share one frame."""
