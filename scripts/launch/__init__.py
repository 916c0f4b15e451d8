"""What the launch scripts share: which Python, how many processes, which port."""
