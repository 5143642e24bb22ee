"""The data sets: each is generated or read, checked, and says what it is."""
