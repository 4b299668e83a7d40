"""Where processes live: bytes in, bytes out, stop with proof. No runtime knows which agent it carries."""
