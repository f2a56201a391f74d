"""GraphQL: queries of what the dashboard displays, and subscriptions to events and logs, at `/api/graphql`."""
