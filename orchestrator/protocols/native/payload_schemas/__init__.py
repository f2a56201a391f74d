"""JSON Schemas of organizations for payloads: `/v1/payload-schemas`."""
