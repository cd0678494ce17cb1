-- A change of a resource asks for the candidates that name it: without an index it reads the whole
-- schedule of each candidate of its scopes.

create index if not exists planning_candidates_resources on planning_candidates using gin ((plan -> 'resourceIds'));
