"""Pictures of results; everything here takes plain arrays and knows nothing of the search."""
