"""HTTP: the application, its routes, access to them, the settings of a server."""
