"""What every place must do, held against each of them."""
