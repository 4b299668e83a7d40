"""The program that owns an agent's process (`program`), and a worker's side of it (`client`). Standard library only."""
