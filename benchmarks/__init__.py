"""How fast Headrace is, beside Airflow's manager and raw clients: `python -m benchmarks [PART ...]`. See README.md."""
