"""What is between client and server: the names of headers, and proxies."""
