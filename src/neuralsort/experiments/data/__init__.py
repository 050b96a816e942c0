"""Where the data of the studies come from, and the lists and images made of them."""
