"""Studies: a base and its arms at equal budget with paired seeds, and the verdict on each."""
