"""kinfolk as an app of Flower: the ServerApp coordinates, the ClientApp forwards to the resident process of a site."""
