"""A federation: a process for every site, beside its data, and a coordinator that has no rows. Letters are sealed."""
