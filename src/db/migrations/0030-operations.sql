-- Accepted runs that no workflow has opened are counted at each scrape of the metrics.
create index if not exists execution_runs_created on execution_runs (created_at) where status = 'created';
