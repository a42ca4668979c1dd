"""What is minimised: losses, couplings, and the local losses of nodes that follow from them."""
