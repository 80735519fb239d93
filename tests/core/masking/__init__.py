"""What is sensitive stays so, wherever a value could be told."""
