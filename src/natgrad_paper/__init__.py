"""The experiments of "Revisiting natural gradient for deep networks", and the `natgrad` command."""
