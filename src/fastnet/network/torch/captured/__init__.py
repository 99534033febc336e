"""Steps of torch as one compiled program: captured, lowered, checked and called."""
