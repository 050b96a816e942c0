"""Products with relaxed permutations of long lists, without their matrix: windows inside a loop."""
