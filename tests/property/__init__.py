"""Properties that hold for whatever comes: random scenarios, each from a seed that is printed when it fails."""
