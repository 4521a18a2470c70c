import tracker_diag


def test_public_names_are_pinned():
    public = sorted(name for name in tracker_diag.__all__)
    assert public == tracker_diag.__all__
    assert all(hasattr(tracker_diag, name) for name in public)
    assert public == [
        "BatchError",
        "DiagError",
        "MissingExtra",
        "Monitor",
        "RuleError",
        "SourceError",
        "StepError",
        "TokenBatch",
        "UnknownName",
        "wrap",
    ]
