"""Rules: documents that name a pathology, and the engine that holds series against them."""
