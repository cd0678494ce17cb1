-- How the image of a build was verified: by a program of it that ran, or by its parts alone.
alter table artifact_variants add column if not exists verification text;
alter table artifact_variants drop constraint if exists artifact_variants_verification;
alter table artifact_variants add constraint artifact_variants_verification
  check (verification in ('executed', 'structural'));
