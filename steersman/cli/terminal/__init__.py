"""What a person sees and types while a run or a loop is followed, and questions at the terminal."""
