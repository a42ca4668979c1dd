"""The main job across organisations: sites learn together from tables whose rows stay where they are."""
