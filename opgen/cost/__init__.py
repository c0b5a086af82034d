"""What a kernel costs on a GPU, predicted from its loops."""
