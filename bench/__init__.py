"""How much a step costs beside the loop a person would write, for fastnet and for its peers."""
