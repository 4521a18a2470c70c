"""The demo: a small agent that really calls a tool, trained on the CPU, with things that go wrong."""
