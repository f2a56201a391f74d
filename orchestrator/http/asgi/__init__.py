"""The ASGI side of the server: connections, routing by scope, request bodies, thread pools."""
