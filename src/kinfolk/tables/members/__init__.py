"""The members of the blend: what each learns from some rows, and what it needs to see of them."""
