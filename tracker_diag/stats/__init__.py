"""The numeric core. It may import numpy alone; every function is pure, on plain arrays."""
