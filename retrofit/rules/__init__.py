"""The rules: one file per hazard, named as the hazard, in folders by subject; their texts are in catalog.py."""
