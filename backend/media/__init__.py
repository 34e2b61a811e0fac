"""Pictures and sounds from outside: fetched within a policy, known by their first bytes, decoded to
pixels and samples. Pure of HTTP servers and of the engine."""
