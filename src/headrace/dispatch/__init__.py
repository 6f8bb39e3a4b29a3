"""From the outbox to the targets: `Dispatcher` claims stored events and delivers them; `targets` are where they go."""
