"""What HTTP sees: the application, its routes, who may ask, the settings."""
